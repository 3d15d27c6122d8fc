"""The data of a figure of matplotlib: points, bars, slices and boxes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MOST_POINTS = 100_000
_SCALES = {"linear", "datetime", "categorical", "log", "symlog", "logit", "function", "functionlog", "asinh"}


def chart_of(figure: Any) -> dict[str, Any] | None:
    """Returns the chart of a figure; None for one without axes. Charts of several axes are a ``superchart``."""
    charts = [_axes(axes) for axes in figure.get_axes()]
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
    return {"type": "superchart", "title": title, "elements": charts} if charts else None


def _axes(axes: Any) -> dict[str, Any]:
    names = {type(patch).__name__ for patch in axes.patches}
    if "Wedge" in names:
        return {"type": "pie", "title": axes.get_title(), "elements": [*_slices(axes)]}
    if bars := _bars(axes):
        return {"type": "bar", **_labels(axes), "elements": bars}
    if _is_box_plot(list(axes.get_lines())) and (found := [*_boxes(axes)]):
        return {"type": "box_and_whisker", **_labels(axes), "elements": found}
    if lines := [*_lines(axes)]:
        return {"type": "line", **_labels(axes), **_scales(axes), "elements": lines}
    if points := [*_points(axes)]:
        return {"type": "scatter", **_labels(axes), **_scales(axes), "elements": points}
    return {"type": "unknown", "title": axes.get_title(), "elements": []}


def _labels(axes: Any) -> dict[str, Any]:
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"title": axes.get_title(), "x_label": x, "y_label": y, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label: str) -> str | None:
    """Returns the unit at the end of a label, as in ``Length (m)``."""
    head, _, rest = label.rpartition("(")
    return rest[:-1] if head and rest.endswith(")") else None


def _scales(axes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        kind = type(axis.converter).__name__ if getattr(axis, "converter", None) is not None else ""
        scale = "datetime" if "Date" in kind else "categorical" if "StrCategory" in kind else axis.get_scale()
        found[f"{name}_scale"] = scale if scale in _SCALES else "unknown"
        found[f"{name}_ticks"] = [_number(tick) for tick in axis.get_ticklocs()]
        found[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
    return found


def _number(value: Any) -> Any:
    """Returns a number or text that JSON has."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, str):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
        return value if isinstance(value, int | float) else str(value)
    number = float(value)
    return number if number == number and abs(number) != float("inf") else None


def _pairs(xs: Iterable[Any], ys: Iterable[Any]) -> list[list[Any]]:
    return [[_number(x), _number(y)] for _, x, y in zip(range(_MOST_POINTS), xs, ys, strict=False)]


def _lines(axes: Any) -> Iterable[dict[str, Any]]:
    for line in axes.get_lines():
        yield {"label": _label(line), "points": _pairs(line.get_xdata(), line.get_ydata())}


def _points(axes: Any) -> Iterable[dict[str, Any]]:
    for each in axes.collections:
        if type(each).__name__ == "PathCollection":
            offsets = each.get_offsets()
            yield {"label": _label(each), "points": _pairs([x for x, _ in offsets], [y for _, y in offsets])}


def _label(artist: Any) -> str:
    text = str(artist.get_label())
    return "" if text.startswith("_") else text


def _bars(axes: Any) -> list[dict[str, Any]]:
    found = []
    for group in axes.containers:
        if type(group).__name__ != "BarContainer":
            continue
        lying = group.orientation == "horizontal"
        axis = axes.yaxis if lying else axes.xaxis
        texts = [label.get_text() for label in axis.get_ticklabels()]
        ticks = dict(zip(map(_number, axis.get_ticklocs()), texts, strict=False))
        for bar in group.patches[:_MOST_POINTS]:
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if lying else bar.get_height()
            text = ticks.get(round(float(middle), 9)) or f"{float(middle):g}"
            found.append({"label": text, "group": _label(group), "value": _number(value)})
    return found


def _slices(axes: Any) -> Iterable[dict[str, Any]]:
    for patch in axes.patches:
        if type(patch).__name__ == "Wedge":
            angle = abs(patch.theta2 - patch.theta1)
            yield {"label": _label(patch), "angle": _number(angle), "radius": _number(patch.r)}


def _is_box_plot(lines: list[Any]) -> bool:
    """Returns whether lines are those of boxes, of which the first closes itself."""
    if len(lines) < 5:
        return False
    xs, ys = list(lines[0].get_xdata()), list(lines[0].get_ydata())
    return (
        len(xs) == 5 and xs[0] == xs[-1] and ys[0] == ys[-1] and all(len(line.get_xdata()) == 2 for line in lines[1:5])
    )


def _boxes(axes: Any) -> Iterable[dict[str, Any]]:
    """Yields the boxes of a box plot.

    The lines of each are a box, two whiskers, two caps, the median, and perhaps points outside.
    """
    lines = list(axes.get_lines())
    names = [label.get_text() for label in axes.get_xticklabels()]
    boxes, at = [], 0
    while at + 5 < len(lines):
        box = lines[at]
        if len(box.get_ydata()) != 5:
            return
        ends = [_number(y) for line in lines[at + 1 : at + 3] for y in line.get_ydata()]
        sides = [_number(y) for y in box.get_ydata()]
        caps = [_number(lines[at + n].get_ydata()[0]) for n in (3, 4)]
        middle = _number(lines[at + 5].get_ydata()[0])
        outside, at = [], at + 6
        if at < len(lines) and len(lines[at].get_ydata()) != 5:
            outside, at = [_number(y) for y in lines[at].get_ydata()], at + 1
        low, high = min(*ends, *caps), max(*ends, *caps)
        boxes.append((low, min(sides), middle, max(sides), high, outside))
    for number, (low, first, middle, third, high, outside) in enumerate(boxes):
        label = names[number] if number < len(names) else ""
        yield {"label": label, "min": low, "first_quartile": first, "median": middle, "third_quartile": third,
               "max": high, "outliers": outside}  # fmt: skip
