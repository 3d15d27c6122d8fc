"""The reference of the Python API, from the public docstrings: ``docs/generate.py`` writes it as ``python.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import skillyard
from skillyard.client import (
    ExportedSkill,
    FetchedBlob,
    ProtocolMethods,
    PublishedSkill,
    Run,
    StoredBlob,
    Tool,
    ToolAnswer,
    errors,
)
from skillyard.client.run import RunFile

HEAD = """# Python API

`import skillyard` gives four classes with the same methods. `Runtime` works in your process, over a data directory that
it owns; `Client` talks to a server. `SyncRuntime` and `SyncClient` are the same without `await`.

<!-- run: server -->
```python
from skillyard import SyncClient

with SyncClient() as yard:  # or SyncClient("http://yard.example:8765", "sky_…"); Client is the same to be awaited
    sales = yard.put_blob(b"region,amount\\nnorth,3\\nsouth,5\\n", "text/csv").blob_id
    run = yard.execute_skill("examples.csv.summarize", {"blob": sales}, input_blobs=[sales])
    report = run.raise_for_status().output["report_blob"]
    print(run.output["rows"], yard.read_blob(report)["kind"])
```

<!-- shows -->
```text
2 text/markdown
```

A run that fails is not an exception: look at `run.status`, or call `run.raise_for_status()`. A parameter that is left
out is not sent, so the server's default holds. A method without a description of its result returns the JSON object
that [methods.md](methods.md) describes.
"""
VALUES = (Run, RunFile, StoredBlob, FetchedBlob, PublishedSkill, ExportedSkill, Tool, ToolAnswer)


def python_page(note: str) -> str:
    """Returns the page, which begins with ``note``."""
    return "\n".join([note, HEAD, *_classes(), *_shared(), *_values(), *_exceptions(), ""])


def _classes() -> Iterator[str]:
    yield "## Classes\n"
    for name in sorted(name for name in skillyard.__all__ if not name.startswith("_")):
        kind = getattr(skillyard, name)
        yield f"### {name}\n\n```text\n{name}{_signature(kind.__init__)}\n```\n\n{_text(kind)}\n"
        asked = _text(kind.__init__)
        if asked:
            yield f"{asked}\n"
        yield from _methods(kind, sorted(n for n, value in vars(kind).items() if _is_own(n, value)))


def _is_own(name: str, value: Any) -> bool:
    """Whether the class alone has the method: those that all four share stand once."""
    return inspect.isfunction(value) and not name.startswith("_") and bool(value.__doc__) and name not in _ALL


_ALL = {name for name, _ in inspect.getmembers(ProtocolMethods, inspect.isfunction) if name != "get_blob"}


def _shared() -> Iterator[str]:
    yield "## Methods of all four classes\n\nThe signatures are those of `Client` and `Runtime`, which are awaited.\n"
    yield from _methods(ProtocolMethods, sorted(name for name in _ALL if not name.startswith("_")))


def _methods(kind: type, names: list[str]) -> Iterator[str]:
    for name in names:
        method = getattr(kind, name)
        yield f"#### {name}\n\n```text\n{name}{_signature(method)}\n```\n\n{_text(method)}\n"


def _values() -> Iterator[str]:
    yield "## Values\n"
    for kind in VALUES:
        fields = [name for name in kind.__dataclass_fields__ if not name.startswith("_")]
        yield f"### {kind.__name__}\n\n{_text(kind)}\n\nFields: {', '.join(f'`{name}`' for name in fields)}.\n"
        yield from _methods(kind, [name for name, value in vars(kind).items() if _is_method(name, value)])


def _is_method(name: str, value: Any) -> bool:
    return inspect.isfunction(value) and not name.startswith("_") and bool(value.__doc__)


_ERRORS = """## Exceptions

A client and a runtime raise the same exceptions: `from skillyard.client import errors`. `ClientError` is `Fault`, and
`RpcError` is `SkillyardError`: the answer of a server or a runtime, of which `type` is the stable name.
`InvalidParams` is `InvalidInput`, `SandboxError` is `SandboxFault`, and `StoreError` is `StoreFault`.
"""


def _exceptions() -> Iterator[str]:
    yield _ERRORS
    yield from _tree([errors.ClientError])


def _tree(roots: list[type], depth: int = 0) -> Iterator[str]:
    for kind in roots:
        yield f"{'  ' * depth}- `{kind.__name__}`{_said(kind)}"
        below = [sub for sub in kind.__subclasses__() if sub.__module__ in _PUBLIC]
        yield from _tree(sorted(below, key=lambda sub: sub.__name__), depth + 1)


_PUBLIC = ("skillyard.client.errors", "skillyard.domain.errors", "skillyard.data_dir")


def _said(kind: type) -> str:
    return f": {' '.join(_text(kind).split())}" if vars(kind).get("__doc__") else ""


def _signature(function: Any) -> str:
    """Returns the signature with a parameter a line where it is long, and types as they are written."""
    signature = inspect.signature(function)
    parts, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default, function)}"
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        parts.append(f"{parameter.name}{kind}{default}")
    returned = signature.return_annotation
    end = ")" if returned in (signature.empty, "None") else f") -> {returned}"
    line = f"({', '.join(parts)}{end}"
    return line if len(line) <= 90 else "(\n" + "".join(f"    {part},\n" for part in parts) + end


def _default(value: Any, function: Any) -> str:
    """Returns a simple value as Python writes it, and any other by its name in the module."""
    if isinstance(value, str):
        return f'"{value}"'
    if value is None or isinstance(value, (bool, int, float, tuple)):
        return repr(value)
    return next(name for name, known in inspect.unwrap(function).__globals__.items() if known is value)


def _text(documented: Any) -> str:
    """Returns the docstring as Markdown."""
    text = inspect.cleandoc(documented.__doc__ or "")
    text = re.sub(r":\w+:`(?:[\w.]*\.)?([\w.]+)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"::\n\n((?:    .*\n|\n)+)", _code, text + "\n").strip()


def _code(found: re.Match[str]) -> str:
    lines = "\n".join(line[4:] for line in found[1].rstrip().split("\n"))
    return f":\n\n```text\n{lines}\n```\n\n"
