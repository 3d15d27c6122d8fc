"""A unified diff of two texts whose author may want it to take for ever.

Myers' algorithm (An O(ND) Difference Algorithm and Its Variations, 1986), greedy and forward, with a budget of steps:
when that is spent, what is left counts as replaced. The diff is right then, too, only not the shortest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTEXT = 3
NO_NEWLINE = "\\ No newline at end of file"


class Budget:
    """``steps`` of comparing that all texts of one diff may take together."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> bool:
        """Returns whether there was as much."""
        self.left -= steps
        return self.left >= 0


class Edit(NamedTuple):
    """Lines ``old_from`` to ``old_to`` of the old text become lines ``new_from`` to ``new_to`` of the new one."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def unified(old: str, new: str, budget: Budget) -> Iterator[str]:
    """Lines without their ends: hunks of ``@@``, `` ``, ``-`` and ``+``; none when the texts are equal."""
    before, after = _lines(old), _lines(new)
    for hunk in _hunks(edits(before, after, budget)):
        yield from _hunk(before, after, hunk)


def _lines(text: str) -> list[str]:
    """Split at line feeds alone; the last line keeps in mind that it had none."""
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1]:
        return [*lines[:-1], f"{lines[-1]}\n{NO_NEWLINE}"]
    return lines[:-1]


def edits(old: Sequence[str], new: Sequence[str], budget: Budget) -> list[Edit]:
    """In their order; never two that touch."""
    start = 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    if not middle_old and not middle_new:
        return []
    found = _shortest(middle_old, middle_new, budget) if middle_old and middle_new else None
    whole = [Edit(0, len(middle_old), 0, len(middle_new))] if found is None else found
    return [Edit(e.old_from + start, e.old_to + start, e.new_from + start, e.new_to + start) for e in whole]


def _shortest(old: Sequence[str], new: Sequence[str], budget: Budget) -> list[Edit] | None:
    """None when the budget is spent."""
    ids: dict[str, int] = {}
    a = [ids.setdefault(line, len(ids)) for line in old]
    b = [ids.setdefault(line, len(ids)) for line in new]
    rounds: list[array[int]] = []
    while budget.spend(2 * len(rounds)):
        reached, walked = _round(a, b, rounds)
        rounds.append(reached)
        if len(a) - len(b) in _diagonals(reached) and reached[_place(len(a) - len(b), reached)] >= len(a):
            return _backwards(rounds, len(a), len(b))
        budget.spend(walked)
    return None


def _round(a: Sequence[int], b: Sequence[int], rounds: Sequence[array[int]]) -> tuple[array[int], int]:
    """With one edit more than before: how far into ``a`` each diagonal gets, and how many equal lines that took."""
    distance = len(rounds)
    reached, walked = array("i"), 0
    for diagonal in range(-distance, distance + 1, 2):
        began = x = _begins(rounds, distance, diagonal)[0]
        y = x - diagonal
        while x < len(a) and y < len(b) and a[x] == b[y]:
            x, y = x + 1, y + 1
        walked += x - began
        reached.append(x)
    return reached, walked


def _diagonals(reached: Sequence[int]) -> range:
    return range(1 - len(reached), len(reached), 2)


def _place(diagonal: int, reached: Sequence[int]) -> int:
    return (diagonal + len(reached) - 1) // 2


def _begins(rounds: Sequence[array[int]], distance: int, diagonal: int) -> tuple[int, bool]:
    """Where a round enters a diagonal, and whether it does so by an insertion."""
    if not distance:
        return 0, True
    before = rounds[distance - 1]
    by_deletion = before[_place(diagonal - 1, before)] if diagonal > -distance else -1
    by_insertion = before[_place(diagonal + 1, before)] if diagonal < distance else -1
    inserts = by_insertion > by_deletion
    return (by_insertion if inserts else by_deletion + 1), inserts


def _backwards(rounds: Sequence[array[int]], x: int, y: int) -> list[Edit]:
    found: list[Edit] = []
    for distance in range(len(rounds) - 1, 0, -1):
        began, inserts = _begins(rounds, distance, x - y)
        at_y = began - (x - y)
        x, y = (began, at_y - 1) if inserts else (began - 1, at_y)
        edit = Edit(x, began, y, at_y)
        if found and (found[-1].old_from, found[-1].new_from) == (began, at_y):
            edit = Edit(x, found[-1].old_to, y, found[-1].new_to)
            found.pop()
        found.append(edit)
    return found[::-1]


def _hunks(found: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Edits whose context would meet stand in one hunk."""
    hunk: list[Edit] = []
    for edit in found:
        if hunk and edit.old_from - hunk[-1].old_to > 2 * CONTEXT:
            yield hunk
            hunk = []
        hunk.append(edit)
    if hunk:
        yield hunk


def _hunk(old: Sequence[str], new: Sequence[str], hunk: Sequence[Edit]) -> Iterator[str]:
    first, last = hunk[0], hunk[-1]
    before = min(CONTEXT, first.old_from)
    after = min(CONTEXT, len(old) - last.old_to)
    old_from, old_to = first.old_from - before, last.old_to + after
    new_from, new_to = first.new_from - before, last.new_to + after
    yield f"@@ -{_span(old_from, old_to)} +{_span(new_from, new_to)} @@"
    at = old_from
    for edit in hunk:
        yield from _marked(" ", old[at : edit.old_from])
        yield from _marked("-", old[edit.old_from : edit.old_to])
        yield from _marked("+", new[edit.new_from : edit.new_to])
        at = edit.old_to
    yield from _marked(" ", old[at:old_to])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield from f"{mark}{line}".split("\n")


def _span(start: int, end: int) -> str:
    """As diff writes it: an empty span names the line before it."""
    return f"{start + 1 if end > start else start},{end - start}"
