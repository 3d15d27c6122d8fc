"""The modules of a sandbox's first process, as one file of bytecode.

The gofer answers for each file that an interpreter looks for and opens, and that takes most of the time of an import.
This module imports nothing but what an interpreter has when it starts, since it loads the others.
"""

from __future__ import annotations

import marshal
import sys
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    Entry = tuple[str, bool, CodeType | None]
    """The path of a module, whether it is a package, and its code; None for a library, which is loaded from there."""

NAME = "modules"


def collect(directory: str, shown: str) -> None:
    """Writes the modules of this process into the file ``NAME`` of ``directory``.

    Of libraries it has the places alone. A sandbox shows the directory as ``shown``.
    """
    table = dict(_loaded(directory, shown))
    _, _, code = table[__name__]
    with open(f"{directory}/{NAME}", "wb") as file:
        file.write(marshal.dumps((code, table)))


def start(shown: str, then: str) -> str:
    """Returns a program that imports from that file while it does ``then``."""
    opened = f"open({shown + '/' + NAME!r}, 'rb').read()"
    return f"import marshal; code, table = marshal.loads({opened}); exec(code); load(table); {then}; loaded()"


def _loaded(directory: str, shown: str) -> Iterator[tuple[str, Entry]]:
    for name, module in sys.modules.items():
        spec = getattr(module, "__spec__", None)
        if spec is not None and type(spec.loader) is ExtensionFileLoader:
            yield name, (spec.loader.path, False, None)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            continue
        path, code = spec.loader.path, spec.loader.get_code(name)
        assert code is not None, "the module was made of it"
        if path.startswith(directory):
            path = shown + path.removeprefix(directory)
        yield name, (path, spec.submodule_search_locations is not None, _moved(code, path))


def _moved(code: CodeType, path: str) -> CodeType:
    constants = tuple(_moved(each, path) if isinstance(each, type(code)) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=constants)


class _Finder:
    def __init__(self, table: dict[str, Entry]) -> None:
        self.table = table

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.table:
            return None
        source, package, code = self.table[fullname]
        places = [source.rpartition("/")[0]] if package else None
        loader = ExtensionFileLoader(fullname, source) if code is None else _Loader(fullname, source, code)
        return spec_from_file_location(fullname, source, loader=loader, submodule_search_locations=places)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def load(table: dict[str, Entry]) -> None:
    """Lets imports find these modules first."""
    sys.meta_path.insert(0, _Finder(table))


def loaded() -> None:
    """Makes the modules look as those do that were imported from their own files."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not _Finder]
    for module in sys.modules.values():
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if type(loader) is _Loader:
            del loader.code
            loader.__class__ = SourceFileLoader  # type: ignore[assignment]
