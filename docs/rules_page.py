"""The page ``rules.md``: from the table of rules."""

from __future__ import annotations

from skillyard.domain.rules import SECTIONS, Rule

HEAD = """# Rules

What `skillyard skill validate`, `skill review`, `skill publish`, `skill install` and `skill problems` can say of a
bundle. Each finding has its rule, file, line and a mend. `error`: the skill is not valid. `danger`: an honest skill has
no reason for it. `warning`: look at it. `note`: good to know.

**strict** is what `skill validate` asks for: the specification. **lenient** (`--lenient`) is what a server still serves
from its directories. **review** is what `skill review` and `catalogue.review` say; nothing of it makes a skill invalid.
An empty cell: nobody looks there.
"""


def rules_page(note: str) -> str:
    parts = [note, HEAD]
    for title, rules in SECTIONS.items():
        profiled = any(rule.strict or rule.lenient for rule in rules)
        parts.append(f"## {title}\n")
        parts.append(
            "| rule | strict | lenient | what is found | mend |"
            if profiled
            else "| rule | level | what is found | mend |"
        )
        parts.append("| --- | --- | --- | --- | --- |" if profiled else "| --- | --- | --- | --- |")
        parts += [_row(rule, profiled) for rule in rules]
        parts.append("")
    return "\n".join(parts)


def _row(rule: Rule, profiled: bool) -> str:
    levels = (rule.strict, rule.lenient) if profiled else (rule.review,)
    cells = [f"`{rule.id}`", *levels, rule.meaning, rule.mend]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
