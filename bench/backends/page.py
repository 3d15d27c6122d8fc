"""The tables of docs/backends.md, from results and from the reasons beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: python -m bench backends writes this part -->", "<!-- the end of what was measured -->"
ADDED_MS, ADDED_SHARE = 30.0, 0.2
"""Each part may cost so much more than with its component used bare, or this share of it."""
_PARTS = ("sandbox", "run", "session", "runs")
_MOST_REASONS = 12


def tables(results: Mapping[str, Mapping[str, Any]], order: Sequence[str]) -> str:
    """Returns markdown; ``results`` by backend and part."""
    shown = [(name, results.get(name, {})) for name in order]
    return "\n".join([*_held(shown), "", *_costs(shown), "", *_kept_out(shown)]) + "\n"


def put(page: Path, text: str) -> None:
    """Puts the tables between the marks of a page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


def _held(shown: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    suite = "passed | not promised | beyond it | failed"
    yield f"| isolation | components | suite: {suite} | attacks of `verify` | programs |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, found in shown:
        if lacking := found.get("lacking"):
            yield f"| `{name}` | {_cell(lacking)} | | | | | | |"
            continue
        versions = ", ".join(f"{what} {which}" for what, which in found.get("versions", {}).items())
        suite = found.get("conformance", {})
        counts = [str(suite.get("counts", {}).get(kind, "")) for kind in ("passed", "refused", "beyond", "failed")]
        counts[0] += _ended(suite)
        yield f"| `{name}` | {_cell(versions)} | {' | '.join(counts)} | {_attacks(found)} | {_programs(found)} |"


def _attacks(found: Mapping[str, Any]) -> str:
    if "failed" in (battery := found.get("battery", {})) or "counts" in battery:
        return ", ".join(f"{count} {verdict}" for verdict, count in sorted(battery["counts"].items())) + _ended(battery)
    return _cell(str(battery.get("error", "")))


def _ended(part: Mapping[str, Any]) -> str:
    """Returns words for a suite or a battery that was ended in the middle."""
    return f" (of the first {part['ended_after']})" if "ended_after" in part else ""


def _programs(found: Mapping[str, Any]) -> str:
    part = found.get("programs", {})
    return f"{part['as_told']} of {part['programs']}" if "programs" in part else _cell(str(part.get("error", "")))


def _costs(shown: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    measured = [(name, found) for name, found in shown if "seconds" in found.get("cost", {})]
    counts = {found["cost"]["runs"] for _, found in measured}
    many = f"{counts.pop()} runs" if len(counts) == 1 else "many runs"
    titles = " | ".join(f"{part}: of native | of bare, added" for part in ("sandbox", "run", "session", many))
    yield f"| isolation | used bare | {titles} |"
    yield f"|{' --- |' * 10}"
    for name, found in measured:
        cells = [f"`{name}`", found.get("bare", "") or "-"]
        for part in _PARTS:
            seconds = found["cost"]["seconds"][part]
            cells += [f"{seconds['ours'] / seconds['native']:.1f}", _beside_bare(found["cost"], part)]
        yield f"| {' | '.join(cells)} |"


def _beside_bare(cost: Mapping[str, Any], part: str) -> str:
    ours, bare = _each(cost, part)
    if not bare:
        return "-"
    return f"{ours / bare:.2f}, {ours - bare:+.0f} ms{' (above)' if _is_above(ours, bare) else ''}"


def _each(cost: Mapping[str, Any], part: str) -> tuple[float, float]:
    """Returns milliseconds of ours and of the bare component, of many runs for each of them; 0 without the latter."""
    seconds, count = cost["seconds"][part], cost["runs"] if part == "runs" else 1
    return seconds["ours"] * 1000 / count, seconds.get("bare", 0.0) * 1000 / count


def _is_above(ours: float, bare: float) -> bool:
    return ours - bare > max(ADDED_MS, ADDED_SHARE * bare)


def _above(name: str, cost: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the parts that cost more than they may, with the reason."""
    for part in cost.get("seconds", {}):
        ours, bare = _each(cost, part)
        if bare and _is_above(ours, bare):
            title = f"Cost of {'many runs' if part == 'runs' else f'a {part}'}"
            yield title, _explained(f"{ours / bare:.2f} of the bare component", name, "cost", part)


def _kept_out(shown: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yields the reasons of all that was not passed, those that share one together."""
    for name, found in shown:
        rows: list[tuple[str, str]] = []
        for title, kind in (("Not promised", "refused"), ("Beyond it", "beyond"), ("Failed", "failed")):
            grouped: dict[str, list[str]] = {}
            for check, why in found.get("conformance", {}).get(kind, []):
                grouped.setdefault(why, []).append(check)
            ordered = sorted(grouped.items(), key=lambda one: -len(one[1]))
            rows += [
                (f"{title}: {_few(checks)}", _explained(why, name, "conformance", checks[0])) for why, checks in ordered
            ]
        for attack, verdict, gave in found.get("battery", {}).get("failed", []):
            rows.append((f"`verify`: {attack}", _explained(f"{verdict}: {gave}", name, "battery", attack)))
        for code, _, gave, *_ in found.get("programs", {}).get("others", []):
            rows.append((f"program `{code}`", _explained(f"gave {gave}", name, "programs", code)))
        rows += _above(name, found.get("cost", {}))
        if rows:
            yield f"\n### {name}\n"
            yield "| what | why |\n| --- | --- |"
            yield from (f"| {_cell(what)} | {_cell(why)} |" for what, why in rows)


def _explained(gave: str, isolation: str, part: str, what: str) -> str:
    """Returns what was given, with the reason that fits it."""
    for one in reasons():
        if (one["of"], one["what"]) == (part, what) and isolation in one["isolations"] and one["gave"] in gave:
            return f"{gave}; {one['why']}"
    return gave


@cache
def reasons() -> tuple[Mapping[str, Any], ...]:
    """Returns the reasons that are known."""
    return tuple(tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))["reason"])


def _few(checks: Sequence[str]) -> str:
    more = f" and {len(checks) - _MOST_REASONS} more" if len(checks) > _MOST_REASONS else ""
    return ", ".join(checks[:_MOST_REASONS]) + more


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
