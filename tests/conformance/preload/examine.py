"""Run by a fresh interpreter: imports a module as a warm interpreter does, and prints what that did as JSON."""

import gc
import json
import os
import sys

site, code, module, log = sys.argv[1:]
sys.path.append(site)
sys.path.append(code)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
read: set[str] = set()


class Watched(type(os.environ)):  # type: ignore[misc]
    def __getitem__(self, key: object) -> object:
        read.add(os.fsdecode(key))  # type: ignore[arg-type]
        return super().__getitem__(key)

    def __iter__(self) -> object:
        read.add("*")
        return super().__iter__()


def words(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()


def descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def generators() -> list[str]:
    from skillyard.guest import randomness

    gc.collect()
    kinds = [type(thing).__qualname__ for thing in randomness._unknown()]
    randomness.remember()
    randomness.reseed()
    return sorted(kinds)


os.environ.update(ONE_THREAD)
open_before, env_before = descriptors(), dict(os.environ)
os.environ.__class__ = Watched
if log:
    os.truncate(log, 0)
__import__(module)
in_c = set(words(log)) if log else set()
os.environ.__class__ = type(os.environ).__mro__[1]
env_after = dict(os.environ)
said = {
    "read": sorted(read),
    "read_in_c": sorted(in_c),
    "changed": sorted(name for name in {*env_after, *env_before} if env_after.get(name) != env_before.get(name)),
    "kept": sorted(path for fd, path in descriptors().items() if fd not in open_before and "/fd" not in path),
    "threads": len(os.listdir("/proc/self/task")),
    "children": words(f"/proc/self/task/{os.getpid()}/children"),
    "generators": generators(),
}
print(json.dumps(said))
