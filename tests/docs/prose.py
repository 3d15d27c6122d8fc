"""Finds prose that breaks the rules for plain English; ``./check`` runs it as a gate.

python tests/docs/prose.py                         every finding
python tests/docs/prose.py src/skillyard/engine    those of files whose path begins so
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "skillyard"
SUMMARY = 90
GENERATED = "<!-- Written by docs/generate.py"
"""How a page begins whose text stands in the source, where it is looked at."""

METAPHORS = (
    "belie",
    "belies",
    "cradle",
    "deathbed",
    "farewell",
    "gossip",
    "hearsay",
    "house rule",
    "house rules",
    "inhabitant",
    "inhabitants",
    "manners",
    "mend",
    "mends",
    "stranger",
    "strangers",
    "tenant",
    "tenants",
    "village",
    "weather",
    "yard",
    "yards",
)
"""Pictures for which the glossary of ARCHITECTURE.md has a word, or which no reader needs."""

PATTERNS = {
    "is-no": re.compile(
        r"(?<!there )\b(?:is|are|was|were|be) no (?!longer\b|more\b|less\b|later\b)[a-z`]", re.IGNORECASE
    ),
    "clause-as-subject": re.compile(r"(?:^|(?<=[.:!] ))(?:What|Who|Whatever) [^.?!]*(?:[.!]|$)"),
    "whoever": re.compile(r"\bwho(?:so)?ever\b", re.IGNORECASE),
    "metaphor": re.compile(rf"(?<![\w`./-])(?:{'|'.join(METAPHORS)})(?![\w`(]|\.\w)", re.IGNORECASE),
    "narration": re.compile(
        r"\b(?:previously|formerly|refactored|(?:has|have) been (?:renamed|moved|replaced|rewritten)"
        r"|this (?:commit|patch)|(?<!is )(?<!are )(?<!be )used to be)\b",
        re.IGNORECASE,
    ),
}
_TEXTS = frozenset({"help", "description", "doc", "summary"})


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose and where it begins; ``summarised`` for a docstring."""

    place: str
    words: str
    summarised: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    place: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.excerpt}"


def faults(text: Text) -> Iterator[Finding]:
    """Yields everything in a text that breaks a rule."""
    words = " ".join(text.words.split())
    for rule, pattern in PATTERNS.items():
        for found in pattern.finditer(words):
            yield Finding(rule, text.place, words[max(0, found.start() - 20) : found.end() + 40])
    summary = summary_of(text.words)
    if text.summarised and len(summary) > SUMMARY:
        yield Finding("long-summary", text.place, summary)


def summary_of(docstring: str) -> str:
    """Returns the first sentence."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?:]) (?=[A-Z`])", paragraph)[0]


def texts_of_python(source: str, place: str) -> Iterator[Text]:
    """Yields docstrings, help texts and descriptions, and the messages of errors."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _docstrings(node, place)
            case ast.keyword(arg=name, value=value) if name in _TEXTS:
                yield from _strings([value], place)
            case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
                yield from _strings([*args, *(k.value for k in keywords if k.arg not in _TEXTS)], place)


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, place: str) -> Iterator[Text]:
    """Yields the node's own docstring, and the strings below its assignments, which need no summary."""
    for index, statement in enumerate(node.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield Text(f"{place}:{statement.lineno}", words, summarised=index == 0)


def _strings(values: Iterable[ast.expr], place: str) -> Iterator[Text]:
    for value in values:
        match value:
            case ast.Constant(value=str(words)):
                yield Text(f"{place}:{value.lineno}", words)
            case ast.JoinedStr(values=parts):
                words = "".join(p.value if isinstance(p, ast.Constant) else "…" for p in parts)  # type: ignore[misc]
                yield Text(f"{place}:{value.lineno}", words)


def texts_of_markdown(source: str, place: str) -> Iterator[Text]:
    """Yields paragraphs, items of lists and cells of tables; code, headings and comments are left out."""
    kept = re.sub(r"^```.*?^```$|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), source, flags=re.M | re.S)
    kept = re.sub(r"`[^`\n]+`", "`code`", kept)
    line = 1
    for block in re.split(r"(?<=\n)(?=\n)|\n(?=\s*[-*|] |\d+\. |\|)", kept):
        for part in block.split("|"):
            words = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", part.strip("\n"))
            if words.strip() and not words.lstrip().startswith("#"):
                yield Text(f"{place}:{line}", words.strip())
        line += block.count("\n")


def texts(under: str) -> Iterator[Text]:
    """Yields the prose of the files whose path from the root begins with ``under``."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for file in sorted([*SOURCE.rglob("*.py"), *pages]):
        place = str(file.relative_to(ROOT))
        if not place.startswith(under) or "bundled" in file.parts or file.name == "CHANGELOG.md":
            continue
        source = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            yield from texts_of_python(source, place)
        elif not source.startswith(GENERATED):
            yield from texts_of_markdown(source, place)


def main(under: str = "") -> int:
    found = [finding for text in texts(under) for finding in faults(text)]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
