"""Imports, calls and names of a Python file, read from its syntax tree.

A parser of hostile text needs a bound of its own: ``facts_of`` runs in a process that can be ended
(:mod:`skillyard.jailed`). Its answer comes back as JSON, and ``facts_from`` takes no other form.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

MOST = 20_000
"""Imports, uses and disguised names that are kept of one file."""
_MOST_CHARACTERS = 500_000
_MOST_NAME = 200
_MOST_PARTS = 20
_WORD = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[\w.*]{0,1000}")


class Import(NamedTuple):
    """An import. ``module`` has its leading dots; ``name`` is empty for the module itself."""

    module: str
    name: str
    line: int

    @property
    def top(self) -> str:
        """The first part of the module; empty for a relative import."""
        return self.module.partition(".")[0]


class Use(NamedTuple):
    """A dotted name that the code reads. Aliases of imports are resolved."""

    dotted: str
    line: int


class Facts(NamedTuple):
    """The facts of one file, each kind in the order of its lines.

    ``disguised`` has names that Python reads as other letters than the file shows. ``full`` says that there are more
    facts than are kept. ``unread`` is the reason why there are none, and ``line`` its place; it is ``grave`` when an
    honest file gives none such.
    """

    imports: tuple[Import, ...] = ()
    uses: tuple[Use, ...] = ()
    disguised: tuple[Use, ...] = ()
    full: bool = False
    unread: str = ""
    line: int = 0
    grave: bool = False


def facts_of(source: str, wanted: Callable[[str], bool]) -> Facts:
    """Returns the facts of a file; ``wanted`` chooses the uses by their dotted names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        return Facts(unread=str(error.msg), line=error.lineno or 0)
    except (ValueError, RecursionError, MemoryError):
        return Facts(unread="it is nested too deep or too large", grave=True)
    statements = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    imports = [found for node in statements for found in _imports(node)]
    uses = [use for use in _uses(nodes, _aliases(statements)) if wanted(use.dotted)]
    disguised = [] if source.isascii() else _disguised(source, nodes)
    return _bounded(sorted(imports, key=_place), sorted(uses, key=_place), disguised)


def facts_from(answer: Mapping[str, Any]) -> Facts:
    """Returns the facts that an answer of another process holds. Raises ValueError for any other form."""
    try:
        facts = Facts(**answer)
        return Facts(
            tuple(Import(_name(module), _name(name), _line(line)) for module, name, line in facts.imports[:MOST]),
            tuple(Use(_name(dotted), _line(line)) for dotted, line in facts.uses[:MOST]),
            tuple(Use(_name(dotted), _line(line)) for dotted, line in facts.disguised[:MOST]),
            bool(facts.full),
            str(facts.unread),
            _line(facts.line),
            bool(facts.grave),
        )
    except (TypeError, AttributeError) as error:
        raise ValueError("not the facts of a file") from error


def _name(value: object) -> str:
    if not isinstance(value, str) or not _DOTTED.fullmatch(value):
        raise ValueError("not a name")
    return value


def _line(value: object) -> int:
    if type(value) is not int:
        raise ValueError("not a line")
    return value


def _place(fact: Import | Use) -> int:
    return fact.line


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    module = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        names = (module, alias.name) if module else (alias.name, "")
        yield Import(names[0][:_MOST_NAME], names[1][:_MOST_NAME], node.lineno)


def _aliases(statements: list[ast.Import | ast.ImportFrom]) -> dict[str, str]:
    """Returns the dotted names that imports give to names of the file."""
    aliases: dict[str, str] = {}
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        else:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"
    return aliases


def _uses(nodes: list[ast.AST], aliases: Mapping[str, str]) -> Iterator[Use]:
    """Yields names with the attributes behind them, and attributes of values without a name."""
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _looked_up(node, aliases)
        elif isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in inner and isinstance(node.ctx, ast.Load):
            yield _dotted(node, aliases)


def _dotted(node: ast.Name | ast.Attribute, aliases: Mapping[str, str]) -> Use:
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    named = isinstance(at, ast.Name)
    parts.append(aliases.get(at.id, at.id) if isinstance(at, ast.Name) else "")
    line = at.lineno if named else at.end_lineno or at.lineno
    return Use(".".join(reversed(parts[:_MOST_PARTS]))[-_MOST_NAME:], line)


def _looked_up(node: ast.Call, aliases: Mapping[str, str]) -> Iterator[Use]:
    """Yields ``os.system`` for ``getattr(os, "system")``."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_]):
            if name.isidentifier():
                yield Use(f"{aliases.get(owner, owner)}.{name}"[-_MOST_NAME:], node.lineno)


def _disguised(source: str, nodes: list[ast.AST]) -> list[Use]:
    """Finds names whose form NFKC, which Python compares (Reference §2.3), is other text."""
    names = {name for node in nodes for name in _names(node)}
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        if not line.isascii():
            plain = ((word[0], unicodedata.normalize("NFKC", word[0])) for word in _WORD.finditer(line))
            found += [
                Use(name[:_MOST_NAME], number)
                for word, name in plain
                if word != name and name.isascii() and name in names
            ]
    return found


def _names(node: ast.AST) -> Iterator[str]:
    """Yields the parts of every identifier in a node; the texts of literals are none."""
    if isinstance(node, ast.Constant):
        return
    for value in (getattr(node, field, None) for field in node._fields):
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                yield from text.split(".")


def _bounded(imports: list[Import], uses: list[Use], disguised: list[Use]) -> Facts:
    """Cuts off what is over the bounds, the end of each kind first."""
    full = False
    room = _MOST_CHARACTERS
    for kind in (imports, uses, disguised):
        for at, fact in enumerate(kind):
            room -= 20 + sum(len(part) for part in fact if isinstance(part, str))
            if room < 0 or at >= MOST:
                del kind[at:]
                full = True
                break
    return Facts(tuple(imports), tuple(uses), tuple(disguised), full)
