"""What a Python file imports, calls and names: from its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from keyword import iskeyword

from skillyard.domain.review.python_tokens import Token, tokens, value_of

MOST = 20_000
"""Imports and uses that are kept of one file."""


@dataclass(frozen=True, slots=True)
class Import:
    """``module`` with its leading dots; ``name`` what is taken from it, empty for the module itself."""

    module: str
    name: str
    offset: int

    @property
    def top(self) -> str:
        """The first part of the module; empty for a relative import."""
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Use:
    """A dotted name that stands in the code, aliases of imports resolved, and whether it is called."""

    dotted: str
    called: bool
    offset: int


@dataclass(slots=True)
class Facts:
    imports: list[Import] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    full: bool = False


def facts_of(source: str, wanted: Callable[[str], bool]) -> Facts:
    """Of any text; what is no Python gives what can be made of it. ``wanted`` says which uses are kept, by their
    dotted names."""
    return _Reading(tokens(source), wanted).facts


class _Reading:
    def __init__(self, stream: Iterable[Token], wanted: Callable[[str], bool]) -> None:
        self.facts = Facts()
        self._wanted = wanted
        self._stream: Iterator[Token] = iter(stream)
        self._ahead: deque[Token] = deque()
        self._aliases: dict[str, str] = {}
        before = ""
        while (token := self._next()) is not None:
            if len(self.facts.imports) + len(self.facts.uses) >= MOST:
                self.facts.full = True
                return
            if token.kind == "name" and before not in ("def", "class"):
                self._name(token, before)
            before = token.text

    def _next(self) -> Token | None:
        return self._ahead.popleft() if self._ahead else next(self._stream, None)

    def _peek(self, at: int = 0) -> Token | None:
        while len(self._ahead) <= at:
            token = next(self._stream, None)
            if token is None:
                return None
            self._ahead.append(token)
        return self._ahead[at]

    def _is(self, text: str, at: int = 0) -> bool:
        token = self._peek(at)
        return token is not None and token.text == text and token.kind in ("mark", "name")

    def _name(self, token: Token, before: str) -> None:
        if token.text == "import":
            self._import()
        elif token.text == "from" and before in ("", "\n", ";", ":"):
            self._from()
        elif not iskeyword(token.text):
            self._use(token, attribute=before == ".")

    def _dotted(self) -> tuple[str, int] | None:
        """``a.b.c`` or ``..a`` from here on; None when there is none."""
        text, offset = "", None
        while (token := self._peek()) is not None:
            if token.text == "." or (
                token.kind == "name" and token.text not in ("import", "as") and text[-1:] in ("", ".")
            ):
                offset = token.offset if offset is None else offset
                text = (text + token.text)[:1000]
                self._next()
            else:
                break
        return (text, offset or 0) if text else None

    def _alias(self) -> str | None:
        if not self._is("as"):
            return None
        self._next()
        token = self._next()
        return token.text if token is not None and token.kind == "name" else None

    def _import(self) -> None:
        while (found := self._dotted()) is not None:
            module, offset = found
            self.facts.imports.append(Import(module, "", offset))
            alias = self._alias()
            self._aliases[alias or module.partition(".")[0]] = module if alias else module.partition(".")[0]
            if not self._is(",") or len(self.facts.imports) >= MOST:
                return
            self._next()

    def _from(self) -> None:
        found = self._dotted()
        if found is None or not self._is("import"):
            return
        self._next()
        module, offset = found
        bracketed = self._is("(")
        if bracketed:
            self._next()
        while (token := self._peek()) is not None:
            if token.kind == "name" or token.text == "*":
                self._next()
                self.facts.imports.append(Import(module, token.text, offset))
                self._aliases[self._alias() or token.text] = f"{module}.{token.text}"
            elif token.text == "," or (bracketed and token.kind == "line"):
                self._next()
            else:
                return
            if len(self.facts.imports) >= MOST:
                return

    def _use(self, token: Token, *, attribute: bool) -> None:
        """``attribute``: of something that has no name, such as what a call returned."""
        parts = ["", token.text] if attribute else [self._aliases.get(token.text, token.text)]
        while self._is(".") and (name := self._peek(1)) is not None and name.kind == "name":
            self._next()
            self._next()
            if len(parts) < 20:
                parts.append(name.text)
        called = self._is("(")
        if not called and self._is("=") and not self._is("=", 1):
            return  # a keyword, or a name that is set
        dotted = self._looked_up() if called and parts == ["getattr"] else ".".join(parts)
        if self._wanted(dotted):
            self.facts.uses.append(Use(dotted, called, token.offset))

    def _looked_up(self) -> str:
        """``getattr(os, "system")`` is ``os.system``."""
        owner, name = self._peek(1), self._peek(3)
        if owner is None or name is None or owner.kind != "name" or not self._is(",", 2) or name.kind != "string":
            return "getattr"
        return f"{self._aliases.get(owner.text, owner.text)}.{value_of(name)}"
