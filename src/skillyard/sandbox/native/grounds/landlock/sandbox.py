"""A landlock sandbox, as the server sees it: its paths are translated, since it has no root directory of its own."""

from __future__ import annotations

from typing import Any

from skillyard.domain.sandbox.spec import Guest, Program
from skillyard.sandbox.native.grounds.landlock.inside.places import real, root_of
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.sandbox import NativeSandbox


class LandlockSandbox(NativeSandbox):
    def __init__(self, link: Link, handle: str, enforced: dict[str, str]) -> None:
        super().__init__(link, handle, enforced)
        self._root = root_of(link.told["homes"], link.told["secret"], handle)
        self._code = link.told["code"]

    def message(self, program: Program) -> tuple[dict[str, Any], bytes]:
        return super().message(Guest(self._placed(program)) if isinstance(program, Guest) else program)

    def files_program(self) -> tuple[str, ...]:
        code = (
            f"import sys; sys.path.insert(0, {self._code!r});"
            " from skillyard.sandbox.native.grounds.landlock.inside.files import main; sys.exit(main(sys.argv[1:]))"
        )
        return ("python3", "-I", "-S", "-c", code)

    def _placed(self, program: Guest) -> dict[str, Any]:
        request = program.request
        skills = {name: {**skill, "root": real(self._root, skill["root"])} for name, skill in request["skills"].items()}
        places = {name: real(self._root, request.get(name, plain)) for name, plain in _PLACES.items()}
        return {**request, **places, "skills": skills}


_PLACES = {"workspace": "/workspace", "blob_root": "/blobs"}
