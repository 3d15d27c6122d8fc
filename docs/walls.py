"""The page ``walls.md``: from the attacks of ``skillyard verify`` and the mutants of ``tests/attacks/verify``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from skillyard.domain.sandbox.guarantees import LIMITS, WALLS
from skillyard.verify.families import everything

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.attacks.verify.catalogue import MUTANTS, NO_MUTANT
from tests.attacks.verify.mutants import Mutant

HEAD = """# Walls and the attacks that need them

Each row takes something away, and names the programs of [`skillyard verify`](verify.md) that escape then: so each wall
is needed, and each of these attacks can fail. With everything in place all of them are contained. What is taken away
are the walls of the native backend, or rules of the server; it is done by `tests/attacks/verify`, in a copy of the
package, and by nothing that is shipped. Where two walls stop the same attack, the row takes both away and says so:
each holds when the other has a hole.

`python -m pytest tests/attacks/verify` tries the rows marked *, with two attacks each; `-m long` tries every row with
all its attacks. Rows for root need a server that is root; *user* is for the walls that an ordinary user has instead.
"""

_WHO = {"root": "root", "ordinary": "user", "both": ""}


def walls_page(note: str) -> str:
    parts = [note, HEAD]
    for title, names in (("Walls", WALLS), ("Limits", LIMITS)):
        parts.append(f"## {title}\n")
        for name in names:
            parts += [f"### `{name}`\n", *_table([mutant for mutant in MUTANTS if name in mutant.without])]
    rules = [mutant for mutant in MUTANTS if mutant.without[0].startswith("rule: ")]
    parts += ["## Rules of the server and of the zygote\n", *_table(rules), *_invariants(), *_others()]
    return "\n".join(parts)


def _table(mutants: list[Mutant]) -> Iterator[str]:
    yield "| taken away | so that | | these escape |"
    yield "| --- | --- | --- | --- |"
    for mutant in mutants:
        gone = ", ".join(name.removeprefix("rule: ") if ":" in name else f"`{name}`" for name in mutant.without)
        escapes = ", ".join(f"`{name}`" for name in mutant.escapes)
        mark = "\\*" if mutant.short else ""
        yield f"| {gone} | {mutant.how} | {_WHO[mutant.who]}{mark} | {escapes} |"
    yield ""


def _invariants() -> Iterator[str]:
    yield "## Invariants\n"
    yield "The numbers are those of [SECURITY.md](../SECURITY.md#invariants).\n"
    yield "| | attacks that test it | of these, escape when something is taken away |"
    yield "| --- | --- | --- |"
    shown = {name for mutant in MUTANTS for name in mutant.escapes}
    for number in range(1, 11):
        names = [attack.name for attack in everything() if number in attack.invariants]
        yield f"| {number} | {len(names)} | {sum(name in shown for name in names)} |"
    yield ""


def _others() -> Iterator[str]:
    yield "## Attacks that escape in no row\n"
    yield "They are tried all the same; nothing here shows that they can fail.\n"
    yield "| attack | why |"
    yield "| --- | --- |"
    yield from (f"| `{name}` | {why} |" for name, why in sorted(NO_MUTANT.items()))
    yield ""
