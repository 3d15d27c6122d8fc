"""Random numbers of its own for each run, which is forked from a warm interpreter.

Libraries tell a fork by their pid, and no process of a sandbox can have that of its warm interpreter. Beside that every
generator that modules keep is seeded anew: Python's, numpy's, and that of each copy of OpenSSL.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Seed = Callable[[], object]

_AT_ONCE = 10_000
_ENTROPY = 32

_kept: list[Seed] = []


def remember() -> None:
    """Finds and seeds the generators that modules imported ahead keep. Raises for one that cannot be seeded."""
    gc.collect()
    _kept[:] = [*_generators(), *_openssls()]
    for seed in _kept:
        seed()


def reseed() -> None:
    """Gives this fork random numbers of its own. All forks of one warm interpreter would draw the same."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        _seed_numpy(modules["numpy"], modules["numpy.random"])
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined] # its own generator, made on first use
    if "uuid" in modules:
        modules["uuid"]._last_timestamp = modules["uuid"]._node = None  # type: ignore[attr-defined]
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    for seed in _kept:
        seed()


def _seed_numpy(numpy: Any, random: Any) -> None:
    """Sets the whole state of the global Mersenne Twister. ``seed()`` takes twice as long in a fresh fork."""
    random.set_state(("MT19937", numpy.frombuffer(os.urandom(624 * 4), numpy.uint32), 624))


def _generators() -> Iterator[Seed]:
    ways = _ways()
    for thing in _unknown():
        yield next(way for kind, way in ways if issubclass(type(thing), kind))(thing)


def _ways() -> list[tuple[type, Callable[[Any], Seed]]]:
    """Returns each kind of generator with the function that seeds it."""
    modules = sys.modules
    ways: list[tuple[type, Callable[[Any], Seed]]] = []
    if "_random" in modules:
        ways.append((modules["_random"].Random, _seed_of_random))
    if "numpy.random.mtrand" in modules and "numpy.random.bit_generator" in modules:
        numpy, bits = modules["numpy.random.mtrand"], modules["numpy.random.bit_generator"]
        ways += [
            (numpy.RandomState, _seed_of_state),
            (bits.BitGenerator, _seed_of_bits),
            (bits.SeedSequence, _seed_of_sequence),
        ]
    return ways


def _unknown() -> list[Any]:
    """Returns the live generators but for the global ones, which :func:`reseed` knows."""
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random.mtrand")
    stateless = getattr(random, "SystemRandom", ())
    known = [getattr(random, "_inst", None)]
    if numpy is not None:
        known += [numpy._rand, numpy._rand._bit_generator]
    found = _alive(tuple(kind for kind, _ in _ways()))
    return [
        thing for thing in found if not issubclass(type(thing), stateless) and not any(thing is one for one in known)
    ]


def _alive(kinds: tuple[type, ...]) -> list[Any]:
    """Returns live objects of these kinds, also untracked ones, which their referrers lead to."""
    found: dict[int, Any] = {}
    known = gc.get_objects()
    for start in range(0, len(known), _AT_ONCE):
        for thing in (*known[start : start + _AT_ONCE], *gc.get_referents(*known[start : start + _AT_ONCE])):
            if issubclass(type(thing), kinds):
                found[id(thing)] = thing
    return list(found.values())


def _seed_of_random(thing: Any) -> Seed:
    plain = sys.modules["_random"].Random.seed
    usual = getattr(sys.modules.get("random"), "Random", None)
    own = None if type(thing).seed in (plain, getattr(usual, "seed", None)) else thing.seed

    def seed() -> None:
        plain(thing)
        if hasattr(thing, "gauss_next"):
            thing.gauss_next = None
        if own is not None:  # one that may keep more than what it inherits, or demand an argument
            with suppress(Exception):
                own()

    return seed


def _seed_of_state(thing: Any) -> Seed:
    kind, bits = type(thing), type(thing._bit_generator)
    return lambda: thing.set_state(kind(bits()).get_state(legacy=False))


def _seed_of_bits(thing: Any) -> Seed:
    kind = type(thing)
    return lambda: setattr(thing, "state", kind().state)


def _seed_of_sequence(thing: Any) -> Seed:
    return lambda: thing.__init__(int.from_bytes(os.urandom(16), "little"))  # 128 bits, as when it draws them itself


def _openssls() -> Iterator[Seed]:
    """Yields RAND_add(3) of each copy of OpenSSL, which mixes in bytes of the kernel."""
    import ctypes

    shared: dict[int, Any] = {}
    for path in _libraries(ctypes):
        try:
            add = ctypes.CDLL(path, mode=os.RTLD_NOLOAD).RAND_add
        except (OSError, AttributeError):
            continue
        add.argtypes, add.restype = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double], None
        shared[ctypes.cast(add, ctypes.c_void_p).value or 0] = add
    for add in shared.values():
        yield _seed_of_openssl(add)
    if not shared and "_ssl" in sys.modules:  # linked into the interpreter
        linked = sys.modules["_ssl"].RAND_add
        yield lambda: linked(os.urandom(_ENTROPY), float(_ENTROPY))
    rust = sys.modules.get("cryptography.hazmat.bindings._rust")
    if hidden := getattr(getattr(getattr(rust, "_openssl", None), "lib", None), "RAND_add", None):
        yield _seed_of_openssl(hidden)


def _seed_of_openssl(add: Callable[[bytes, int, float], object]) -> Seed:
    return lambda: add(os.urandom(_ENTROPY), _ENTROPY, float(_ENTROPY))


def _libraries(ctypes: Any) -> list[str]:
    """Returns the paths of mapped libraries by dl_iterate_phdr(3), which needs no /proc."""

    class Object(ctypes.Structure):  # type: ignore[misc]
        _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))

    found: list[str] = []

    def note(info: Any, _size: int, _data: Any) -> int:
        found.append(os.fsdecode(info.contents.name or b""))
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Object), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(kind(note), None)
    return [path for path in found if path.startswith("/")]
