"""Figures and tables that cells show, with the packages that the environment of the tests has."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.sandbox.frames import FrameLimits, FrameReader, Shown

PACKAGES = Path(os.environ.get("SKILLYARD_TEST_NUMPY") or "/nowhere")
SOURCE = Path(__file__).parents[3] / "src"
RUN = """
import os, sys
sys.path[:0] = [{source!r}, {packages!r}]
from skillyard.guest.frames import Channel
from skillyard.guest.programs import display
channel = Channel()
channel.open(1)
shows, names = display.Shows(), {{"__name__": "__main__"}}
display.prepare(shows, names)
shows.begin(channel, 100, 16 << 20)
exec(sys.stdin.read(), names)
shows.figures()
if "value" in names:
    shows.show(display.forms_of(names["value"]), main=True)
"""


def shown_by(code: str, needs: str) -> list[Shown]:
    """Returns the values that a cell shows."""
    if not (PACKAGES / needs).is_dir():
        pytest.skip(f"there is no {needs} in SKILLYARD_TEST_NUMPY")
    words = [sys.executable, "-I", "-c", RUN.format(source=str(SOURCE), packages=str(PACKAGES))]
    ran = subprocess.run(words, input=code.encode(), capture_output=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    frames = FrameReader(FrameLimits(shows=100)).feed(ran.stdout)
    assert all(isinstance(frame, Shown) for frame in frames)
    return [frame for frame in frames if isinstance(frame, Shown)]


def chart(code: str) -> dict[str, Any]:
    """Returns the data of the one figure that a cell shows, which is a picture too."""
    [frame] = shown_by(f"import matplotlib.pyplot as plt\n{code}\nplt.show()", "matplotlib")
    assert base64.b64decode(frame.formats["image/png"]).startswith(b"\x89PNG")
    found: dict[str, Any] = frame.formats["application/x.chart+json"]
    return found


def test_lines_are_data() -> None:
    found = chart("plt.plot([1, 2, 3], [4.0, 5.5, 6.0], label='one'); plt.title('T'); plt.xlabel('Time (s)')")
    assert (found["type"], found["title"], found["x_label"], found["x_unit"]) == ("line", "T", "Time (s)", "s")
    assert found["elements"] == [{"label": "one", "points": [[1, 4.0], [2, 5.5], [3, 6.0]]}]
    assert (found["x_scale"], len(found["x_ticks"])) == ("linear", len(found["x_tick_labels"]))


def test_points_bars_slices_and_boxes_are_data() -> None:
    assert chart("plt.scatter([1, 2], [3, 4])")["elements"][0]["points"] == [[1.0, 3.0], [2.0, 4.0]]
    bars = chart("plt.bar(['a', 'b'], [3, 4])")
    assert (bars["type"], [(e["label"], e["value"]) for e in bars["elements"]]) == ("bar", [("a", 3), ("b", 4)])
    pie = chart("plt.pie([1, 3], labels=['x', 'y'])")
    assert [(e["label"], round(e["angle"])) for e in pie["elements"]] == [("x", 90), ("y", 270)]
    box = chart("plt.boxplot([[1, 2, 3, 4, 5, 100]])")
    assert box["type"] == "box_and_whisker"
    assert (box["elements"][0]["median"], box["elements"][0]["outliers"]) == (3.5, [100])
    both = chart("_, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.scatter([1], [2]); plt.suptitle('both')")
    assert (both["type"], [e["type"] for e in both["elements"]]) == ("superchart", ["line", "scatter"])


def test_figures_that_are_not_shown_are_shown_at_the_end_and_once() -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); plt.figure(); plt.plot([2])"
    assert len(shown_by(code, "matplotlib")) == 2


def test_tables_are_data() -> None:
    [frame] = shown_by("import pandas as pd\nvalue = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})", "pandas")
    assert frame.main
    assert "<table" in frame.formats["text/html"]
    assert json.loads(json.dumps(frame.formats["application/x.data+json"])) == {"a": [1, 2], "b": ["x", None]}
