"""Python files: where their imports come from, and what in them deserves a look."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import field

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted
from skillyard.domain.review.python_facts import Facts, Import
from skillyard.domain.review.python_words import (
    CALLS,
    DECODING,
    EXECUTING,
    MODULES,
    REACHING,
    SPAWNING,
    is_network,
    provides,
)
from skillyard.values import dataclass

_ENCODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN_ENCODINGS = frozenset(
    {"utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "cp1252"}
)


@dataclass(frozen=True, slots=True)
class Ground:
    """The modules that code may import.

    ``own`` are names of modules and packages of the bundle, ``files`` those that are files;
    ``declared`` requirements, ``required`` skills; whether the network is asked for."""

    own: frozenset[str]
    files: frozenset[str]
    declared: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    network: bool = False

    @property
    def packages(self) -> frozenset[str]:
        return frozenset().union(*(provides(text) for text in self.declared))


@dataclass(slots=True)
class Imports:
    """First parts of module names by where they come from."""

    standard: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    skills: set[str] = field(default_factory=set)
    undeclared: set[str] = field(default_factory=set)


def own_modules(paths: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names by which the bundle's modules could be imported, and those of files."""
    parts = [path.removesuffix(".py").split("/") for path in paths if path.endswith(".py")]
    return frozenset(name for path in parts for name in path), frozenset(path[-1] for path in parts)


def is_python(file: File) -> bool:
    return file.suffix in (".py", ".pyi", ".pyw") or bool(re.match(rb"#![^\n]{0,200}python", file.data))


def check_python(file: File, text: Text, facts: Facts, ground: Ground, imports: Imports, notes: Notes) -> None:
    packages = ground.packages
    for found in facts.imports:
        _import(file, found, ground, packages, imports, notes)
    _calls(file, facts, notes)
    _declared_encoding(file, text, notes)
    for use in facts.disguised:
        message = f"a name in letters of another kind means '{use.dotted[:60]}' to Python"
        notes.danger(file.path, use.line, "disguised-name", message)
    if facts.full:
        notes.warn(file.path, 0, "review-partial", "holds more names than are looked at")
    if facts.unread:
        message = f"could not be read as Python, so its imports and calls are not known: {quoted(facts.unread, 120)}"
        notes.add("danger" if facts.grave else "warning", file.path, facts.line, "unread-python", message)


def _import(
    file: File, found: Import, ground: Ground, packages: frozenset[str], imports: Imports, notes: Notes
) -> None:
    line, top = found.line, found.top
    if not top:
        return  # relative: a file beside it
    if top == "skills":
        imports.skills.add(found.module)
        _skill(file, line, found, ground, notes)
    elif top in ground.own or top == "runtime":
        imports.own.add(top)
        if top in sys.stdlib_module_names and top in ground.files:
            notes.warn(file.path, line, "shadowed", f"a file of the bundle takes the place of the module '{top}'")
    elif top in sys.stdlib_module_names:
        imports.standard.add(top)
    elif top in packages:
        imports.declared.add(top)
    else:
        imports.undeclared.add(top)
        notes.warn(
            file.path, line, "undeclared-import", f"imports {quoted(top)}, which no declared package is known to give"
        )
    _grave(file, line, found, ground, notes)


def _skill(file: File, line: int, found: Import, ground: Ground, notes: Notes) -> None:
    name = found.module.removeprefix("skills.")
    if name == "skills" or any(name == other or name.startswith(f"{other}.") for other in ground.required):
        return
    notes.warn(file.path, line, "undeclared-skill", f"imports the skill {quoted(name)}, which 'requires' does not name")


def _grave(file: File, line: int, found: Import, ground: Ground, notes: Notes) -> None:
    if found.top in MODULES and found.module != "importlib.metadata" and found.module != "importlib.resources":
        level, why = MODULES[found.top]
        notes.add(level, file.path, line, "import", f"imports '{found.top}', which {why}")
    if is_network(found.module, found.name):
        if ground.network:
            notes.note(file.path, line, "import", f"imports '{found.module}', which reaches the network")
        else:
            message = f"imports '{found.module}', which reaches the network, and declares no network"
            notes.warn(file.path, line, "undeclared-network", message)


def _calls(file: File, facts: Facts, notes: Notes) -> None:
    decodes = any(use.dotted in DECODING for use in facts.uses)
    for use in facts.uses:
        level, why = CALLS.get(use.dotted, ("", ""))
        if not level and SPAWNING.fullmatch(use.dotted):
            level, why = "warning", "starts programs"
        if not level and use.dotted.rpartition(".")[2] in REACHING:
            level, why = "warning", "leads from an object to the whole interpreter"
        line = use.line
        if decodes and use.dotted in EXECUTING:
            message = f"'{use.dotted}' in a file that also decodes data: code may be hidden in it"
            notes.danger(file.path, line, "hidden-code", message)
        elif level:
            notes.add(level, file.path, line, "call", f"'{use.dotted}' {why}")


def _declared_encoding(file: File, text: Text, notes: Notes) -> None:
    """Finds a codec in the first two lines (PEP 263) that reads other code than an editor shows."""
    for number, line in enumerate(text[:1000].split("\n")[:2], 1):
        found = _ENCODING.match(line)
        if found and found[1].lower().replace("_", "-") not in _PLAIN_ENCODINGS:
            message = f"is decoded by {quoted(found[1])}: Python may run other text than you read"
            notes.danger(file.path, number, "odd-encoding", message)
