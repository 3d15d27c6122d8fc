"""Values that cells show: the forms that a value gives itself, tables, and figures.

A value is shown as a frame V: ``{"main": …, "formats": {MIME type: form, …}}``. Binary forms are base64. Standard
error of cells goes out as frames T, apart from their output.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from _thread import allocate_lock, start_new_thread
from types import ModuleType

from .charts import chart_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..frames import Channel

_FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
CHART, DATA = "application/x.chart+json", "application/x.data+json"
"""Our own types: the data of a figure, and the columns of a table."""
_MOST_TEXT = 1 << 20
_MOST_CELLS = 100_000
"""Values of a table that are given as data."""
_PIECE = 32 * 1024
_BACKEND = "skillyard_figures"
_FIGURES = """
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

FigureManager = FigureManagerBase

def show(*_args, **_named):
    _show_figures()
"""


class Shows:
    """The values that the cells of one interpreter show. ``channel`` is that of the cell at work."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._left = self._most_bytes = 0
        self._pid = os.getpid()

    def begin(self, channel: Channel, most: int, most_bytes: int) -> None:
        self._channel, self._left, self._most_bytes = channel, most, most_bytes

    def end(self) -> None:
        self._channel = None

    def show(self, formats: Mapping[str, Any], *, main: bool = False) -> None:
        """Raises RuntimeError for too much, and where no cell is at work."""
        data = _encoded({"main": main, "formats": formats})
        if self._channel is None or os.getpid() != self._pid:
            raise RuntimeError("nothing can be shown where no cell is at work")
        if self._left < 1 or len(data) > self._most_bytes:
            raise RuntimeError(f"a cell shows a limited number of values, of {self._most_bytes} bytes each")
        self._left -= 1
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a frame that breaks off ends the cell
        try:
            self._channel.send(b"V", data)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def display(self, *values: object, raw: bool = False, **_named: object) -> None:
        """Shows values as IPython does; with ``raw`` they are forms by MIME type already."""
        for value in values:
            self.show(_plain(value) if raw and isinstance(value, dict) else forms_of(value))

    def figures(self) -> None:
        """Shows the open figures of matplotlib, and closes them."""
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is None:
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            try:
                if figure.get_axes():
                    self.show(_figure(figure))
            finally:
                pyplot.close(figure)


def _encoded(value: object) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":")).encode()


def forms_of(value: object) -> dict[str, Any]:
    """Returns the forms of a value by MIME type. One that fails is told on standard error, and left out."""
    kind = type(value)
    found: dict[str, Any] = {}
    if kind.__module__ == "matplotlib.figure":
        found |= _figure(value)
    bundle = _called(value, "_repr_mimebundle_")
    if isinstance(bundle, tuple) and bundle:
        bundle = bundle[0]
    if isinstance(bundle, dict):
        found |= _plain(bundle)
    for name, mime in _FORMS.items():
        if mime not in found and (form := _called(value, name)) is not None:
            found[mime] = _text(form[0] if isinstance(form, tuple) and form else form)
    if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
        found |= _table(value)
    if "text/plain" not in found:
        try:
            found["text/plain"] = repr(value)
        except Exception as error:  # noqa: BLE001 - foreign code
            found["text/plain"] = f"<{kind.__name__}: {type(error).__name__} in __repr__>"
    plain = found["text/plain"]
    if isinstance(plain, str) and len(plain) > _MOST_TEXT:  # a part of another form would be of no use
        found["text/plain"] = plain[:_MOST_TEXT] + "…"
    return {mime: form for mime, form in found.items() if form is not None}


def _called(value: object, name: str) -> Any:
    method = getattr(type(value), name, None)
    if method is None or isinstance(value, type):
        return None
    try:
        return getattr(value, name)()
    except NotImplementedError:
        return None
    except Exception:  # noqa: BLE001 - foreign code
        import traceback

        traceback.print_exc()
        return None


def _text(form: Any) -> Any:
    if isinstance(form, bytes | bytearray | memoryview):
        from binascii import b2a_base64  # most programs show nothing

        return b2a_base64(form, newline=False).decode("ascii")
    return form


def _plain(bundle: Mapping[object, Any]) -> dict[str, Any]:
    return {str(mime): _text(form) for mime, form in bundle.items()}


def _table(frame: Any) -> dict[str, Any]:
    """Returns the columns of a table, where it is not too large."""
    try:
        if frame.size > _MOST_CELLS:
            return {}
        columns = json.loads(frame.to_json(orient="split", date_format="iso"))
        return {DATA: {str(name): [row[at] for row in columns["data"]] for at, name in enumerate(columns["columns"])}}
    except Exception:  # noqa: BLE001 - of foreign data
        return {}


def _figure(figure: Any) -> dict[str, Any]:
    import io

    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    found: dict[str, Any] = {"image/png": _text(file.getvalue()), "text/plain": repr(figure)}
    try:
        chart = chart_of(figure)
    except Exception:  # noqa: BLE001 - a picture without its data is better than none
        chart = None
    return found if chart is None else {**found, CHART: chart}


class Errors:
    """Standard error of cells, which a thread passes on."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._lock = allocate_lock()
        self._channel: Channel | None = None
        start_new_thread(self._serve, ())

    def begin(self, channel: Channel) -> None:
        with self._lock:
            self._drain()
            self._channel = channel
        os.dup2(self._writing, 2)

    def end(self) -> None:
        with self._lock:
            self._drain()
            self._channel = None

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                self._drain()

    def _drain(self) -> None:
        try:
            while data := os.read(self._reading, _PIECE):
                if self._channel is not None:
                    self._channel.send(b"T", data)
        except BlockingIOError:
            return
        except (OSError, RuntimeError):  # the cell was ended
            self._channel = None


def prepare(shows: Shows, names: dict[str, Any]) -> None:
    """Gives cells ``display``, a stand-in for IPython, and figures without a screen."""
    names["display"] = shows.display
    os.environ.setdefault("MPLBACKEND", f"module://{_BACKEND}")
    sys.meta_path.append(_Finder(shows))


class _Finder:
    """Finds our modules behind all others."""

    def __init__(self, shows: Shows) -> None:
        self._shows = shows

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        if name not in (_BACKEND, "IPython", "IPython.display", "IPython.core", "IPython.core.display"):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))  # type: ignore[arg-type]

    def create_module(self, _spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _BACKEND:
            module.__dict__["_show_figures"] = self._shows.figures
            exec(_FIGURES, module.__dict__)  # noqa: S102 - our own
        elif module.__name__ == "IPython":
            module.__dict__["get_ipython"] = lambda: None
            module.__dict__["display"] = self._shows.display
        elif module.__name__ != "IPython.core":
            module.__dict__.update(_classes(self._shows))


def _classes(shows: Shows) -> dict[str, Any]:
    """Returns the classes of IPython.display that stand for one form."""

    def stands_for(name: str, mime: str) -> type:
        def start(self: Any, data: Any = None, filename: Any = None, **_named: Any) -> None:
            if data is None and filename is not None:
                with open(filename, "rb") as file:
                    data = file.read()
            self.data = data if mime.startswith("image/p") or not isinstance(data, bytes) else data.decode()

        def bundle(self: Any, **_named: Any) -> dict[str, Any]:
            return {mime: self.data}

        return type(name, (), {"__init__": start, "_repr_mimebundle_": bundle})

    forms = {"HTML": "text/html", "Markdown": "text/markdown", "SVG": "image/svg+xml", "Image": "image/png",
             "Latex": "text/latex", "Math": "text/latex", "JSON": "application/json",
             "Javascript": "application/javascript"}  # fmt: skip
    made: dict[str, Any] = {name: stands_for(name, mime) for name, mime in forms.items()}
    return {**made, "display": shows.display, "clear_output": lambda *_args, **_named: None}
