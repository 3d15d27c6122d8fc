"""The finder for ``from skills.a.b.c import anything`` (skills-protocol §10).

``skills`` and the names between are synthetic packages. The last part *is* the entrypoint's module, loaded under
the skill's name with the directory of the entrypoint as its ``__path__``, so that the files beside it are its
submodules. Inside a skill a plain ``import utils`` means the file beside it: the modules of a skill get an
``__import__`` of their own that looks there first and gives the very same submodule, so that two skills may each
have a ``utils``. Only the statement and ``__import__`` are so: ``importlib.import_module("utils")`` takes no regard
of who asks; ``import_module(".utils", __package__)`` does.

A parent is imported before its child, as ever: where ``a.b`` and ``a.b.c`` are both skills, importing the second
executes the first. A skill wins over a file beside the entrypoint that has the same dotted name.

Agent Skills tell their reader to import from the root of the skill (``from core.gif import Builder``) or to stand in
``scripts/``. So a top-level module that nothing else provides is looked for there last, in mounted skills that have no
entrypoint; where several have one of that name, the import fails and names the ways to say which.
"""

from __future__ import annotations

import builtins
import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib import import_module
    from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
    from typing import Any

    from _typeshed import ReadableBuffer

    MetaPath = Sequence[str] | None

    Mounts = Mapping[str, Mapping[str, str | None]]
else:  # where importlib finds them
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib import _gcd_import as import_module
    from _frozen_importlib_external import PathFinder, SourceFileLoader

ROOT = "skills"
_RESERVED = frozenset({ROOT, "runtime"})
SKILLS_DIR = "SKILLS_DIR"
"""The directory that holds the mounted skills by name: /skills, or where that is without a root of our own."""
SKILL_DIR = "SKILL_DIR"
"""The root of the executed skill, or of the only one that is mounted."""


class Skill:
    """A mounted skill. ``entry`` is relative to ``root``; None for one that is text, whose scripts can still be
    imported: those in ``scripts/`` and what lies below the root."""

    def __init__(self, name: str, root: str, entry: str | None) -> None:
        self.package = f"{ROOT}.{name}"
        self.entry = os.path.join(root, entry) if entry else None
        self.path = [os.path.dirname(self.entry)] if self.entry else [os.path.join(root, "scripts"), root]
        self.alias = f"{self.package}.{os.path.basename(entry).removesuffix('.py')}" if entry else ""
        """The entrypoint's module under its file name too: the same module, not a second one."""
        self._globals: dict[str, Any] | None = None

    def builtins(self) -> dict[str, Any]:
        """Returns the ``__builtins__`` of the skill's modules, with our ``__import__``."""
        if self._globals is None:
            files, directories = _siblings(self.path)
            own = _importer(self, builtins.__import__, files, directories)
            self._globals = {**builtins.__dict__, "__import__": own}
        return self._globals


def _siblings(path: list[str]) -> tuple[set[str], set[str]]:
    """Returns modules and packages below ``path``, and directories without ``__init__.py``."""
    files: set[str] = set()
    directories: set[str] = set()
    for entry in _scan(path):
        if entry.name.endswith((".py", ".so")):
            files.add(entry.name.partition(".")[0])
        elif entry.name.isidentifier() and entry.is_dir():
            is_package = os.path.exists(os.path.join(entry.path, "__init__.py"))
            (files if is_package else directories).add(entry.name)
    return files - _RESERVED, directories - _RESERVED


def top_level_names(path: list[str]) -> set[str]:
    """Returns the names that can be imported from the directories of ``path``."""
    files, directories = _siblings(path)
    return files | directories


def _scan(path: list[str]) -> Iterator[os.DirEntry[str]]:
    for directory in path:
        if os.path.isdir(directory):
            with os.scandir(directory) as entries:
                yield from entries


def _importer(skill: Skill, usual: Callable[..., ModuleType], files: set[str], directories: set[str]) -> Any:
    def __import__(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or (top not in files and top not in directories):
            return usual(name, globals, locals, fromlist, level)
        if top in directories and top not in files:  # as on sys.path, a real module of that name comes first
            try:
                return usual(name, globals, locals, fromlist, 0)
            except ModuleNotFoundError as error:
                if error.name != top:
                    raise
        return _import_own(skill, usual, name, globals, locals, fromlist)

    return __import__


def _import_own(
    skill: Skill,
    usual: Callable[..., ModuleType],
    name: str,
    globals: Mapping[str, object] | None,
    locals: Mapping[str, object] | None,
    fromlist: Sequence[str] | None,
) -> ModuleType:
    full = f"{skill.package}.{name}"
    if fromlist:
        import_module(skill.package)
        return usual(full, globals, locals, fromlist, 0)
    import_module(full)
    return sys.modules[f"{skill.package}.{name.partition('.')[0]}"]


class SkillModule(ModuleType):
    """A module whose own names are not replaced by submodules that are imported later."""

    def __setattr__(self, name: str, value: object) -> None:
        submodule = isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not submodule or isinstance(self.__dict__.get(name, value), ModuleType):
            super().__setattr__(name, value)


class SkillLoader(SourceFileLoader):
    """Loads a module of a skill. Nothing is written beside the source."""

    def __init__(self, fullname: str, path: str, skill: Skill) -> None:
        super().__init__(fullname, path)
        self._skill = skill

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return SkillModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._skill.builtins()
        if module.__name__ != self._skill.package:
            super().exec_module(module)
            return
        sys.modules[self._skill.alias] = module
        try:
            super().exec_module(module)
        except BaseException:
            sys.modules.pop(self._skill.alias, None)  # the other name the import system takes back itself
            raise

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        """The bytecode cache: the directory is read-only and shared."""


class _PackageLoader:
    """Makes a package without code."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return SkillModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


class SkillFinder:
    """The meta-path finder for what is mounted in this run."""

    def __init__(self, mounted: Mapping[str, Mapping[str, str | None]]) -> None:
        self._skills = {
            import_name(name): Skill(import_name(name), mount["root"] or "", mount["entry"])
            for name, mount in mounted.items()
        }
        for skill in self._skills.values():
            if skill.alias[len(ROOT) + 1 :] in self._skills:
                skill.alias = skill.package
        self._packages = {prefix for name in self._skills for prefix in _prefixes(name)}
        self._names = sorted(mounted)

    def find_spec(self, fullname: str, path: MetaPath = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raises ImportError for a skill that is not mounted."""
        if fullname == ROOT:
            return _package(fullname, [])
        if not fullname.startswith(ROOT + "."):
            return None
        name = fullname[len(ROOT) + 1 :]
        skill = self._skills.get(name)
        if skill is not None:
            return _leaf(fullname, skill)
        owner = self._owner(name)
        if owner is not None:
            found = _submodule(fullname, path, target, owner)
            if found is not None or name not in self._packages:
                return found
        if name in self._packages:
            return _package(fullname, [])
        raise ImportError(self._complaint(_asked_for(fullname)[len(ROOT) + 1 :]), name=fullname)

    def _owner(self, name: str) -> Skill | None:
        """The skill that a submodule's name belongs to: the longest that it begins with."""
        while "." in name:
            name = name.rpartition(".")[0]
            if name in self._skills:
                return self._skills[name]
        return None

    def _complaint(self, name: str) -> str:
        if not self._names:
            return f"skill '{name}' is not mounted in this run, and no other is; name it in mount_skills"
        names = ", ".join(self._names[:20]) + (", …" if len(self._names) > 20 else "")
        return f"skill '{name}' is not mounted in this run; name it in mount_skills (mounted: {names})"


def _asked_for(fullname: str) -> str:
    """The whole name of the import under way: the import system asks for its first parts first."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_back is not None:
        if frame.f_code.co_name == "_find_and_load":
            fullname = frame.f_locals.get("name", fullname)
        frame = frame.f_back
    return fullname


def import_name(name: str) -> str:
    """The dotted name below ``skills`` by which a skill is imported."""
    return name.replace("-", "_")


def _prefixes(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _package(fullname: str, path: list[str]) -> ModuleSpec:
    spec = ModuleSpec(fullname, _PackageLoader(), is_package=True)  # type: ignore[arg-type] # it needs no base class
    spec.submodule_search_locations = path
    return spec


def _leaf(fullname: str, skill: Skill) -> ModuleSpec:
    if skill.entry is None:
        return _package(fullname, list(skill.path))
    spec = ModuleSpec(fullname, SkillLoader(fullname, skill.entry, skill), origin=skill.entry, is_package=True)
    spec.submodule_search_locations = list(skill.path)
    spec.has_location = True
    return spec


def _submodule(fullname: str, path: MetaPath, target: ModuleType | None, skill: Skill) -> ModuleSpec | None:
    spec = PathFinder.find_spec(fullname, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = SkillLoader(fullname, spec.loader.path, skill)
    return spec


def show_skills(request: Mapping[str, Any]) -> None:
    """Let what comes after import and find the skills of ``request``."""
    skills: Mounts = request["skills"]
    sys.meta_path.insert(0, SkillFinder(skills))
    if not skills:
        return
    texts = {name: mount["root"] or "" for name, mount in skills.items() if mount["entry"] is None}
    if texts:
        sys.meta_path.append(RootFinder(texts))
    os.environ.update(_variables(skills, request["skill"]))


def _variables(skills: Mounts, executed: str | None) -> dict[str, str]:
    found = {SKILLS_DIR: os.path.dirname(next(iter(skills.values()))["root"] or "")}
    name = executed or (next(iter(skills)) if len(skills) == 1 else None)
    if name is not None:
        found[SKILL_DIR] = skills[name]["root"] or ""
    return found


class RootFinder:
    """The last meta-path finder. ``roots`` of skills without an entrypoint, by name."""

    def __init__(self, roots: Mapping[str, str]) -> None:
        self._skills = [Skill(import_name(name), root, None) for name, root in roots.items()]
        self._names: list[set[str]] | None = None

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for a name that several skills have."""
        if path is not None or "." in fullname:
            return None
        if self._names is None:
            self._names = [top_level_names(skill.path) for skill in self._skills]
        having = [skill for skill, names in zip(self._skills, self._names, strict=True) if fullname in names]
        if len(having) > 1:
            ways = ", ".join(f"{skill.package}.{fullname}" for skill in having[:20])
            raise ModuleNotFoundError(
                f"several mounted skills have a module named {fullname!r}; import one of {ways}", name=fullname
            )
        return PathFinder.find_spec(fullname, having[0].path, target) if having else None
