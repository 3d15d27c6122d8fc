"""Poisoning the warm interpreter: memory, descriptors and files that a later run might have in common with this one."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, broken, escaped
from skillyard.verify.judge import told
from skillyard.verify.make import Family
from skillyard.verify.yard import Yard

FAMILY = Family("poisoning", invariants=(3, 8))
_TURNS = 6


def _poisons(name: str, tries: str, poison: str, look: str, *, walls: tuple[str, ...] = ()) -> None:
    """``poison`` shows in its own run that it works; ``look`` must find the interpreter as it was made."""

    async def steps(yard: Yard) -> Judgement:
        first = await yard.attack(poison)
        if not first.ok or first.output["wrong"]:
            return broken(str(first.output["wrong"]) if first.ok else told(first))
        for _ in range(_TURNS):
            found = await yard.attack(look)
            if not found.ok:
                return escaped(f"a later run is broken: {told(found)}")
            if found.output["got"]:
                return escaped("; ".join(found.output["got"]))
            if found.output["wrong"]:
                return broken("; ".join(found.output["wrong"]))
        return CONTAINED

    FAMILY.steps(name, tries, steps, walls=walls)


_poisons(
    "modules",
    "Replace functions of builtins and of modules that were imported ahead, and add modules of its own.",
    """
    import builtins, io, json, types
    json.dumps = lambda *a, **k: "poisoned"
    builtins.open, real = (lambda *a, **k: io.StringIO("poisoned")), builtins.open
    builtins.poisoned = True
    os.getpid = lambda: 4242
    sys.modules["evil"] = types.ModuleType("evil")
    sys.path.insert(0, "/tmp")
    sys.setrecursionlimit(123)
    works("it is poisoned", lambda: json.dumps(1) == "poisoned" and os.getpid() == 4242)
    json.dumps = __import__("importlib").reload(__import__("json")).dumps
    """,
    """
    import builtins, json
    must_be("json", "[1]", json.dumps([1]))
    must_hold("builtins", not hasattr(builtins, "poisoned"))
    must_hold("os.getpid", os.getpid() != 4242)
    must_hold("modules", "evil" not in sys.modules)
    must_hold("path", "/tmp" not in sys.path)
    must_hold("recursion limit", sys.getrecursionlimit() != 123)
    """,
)
_poisons(
    "objects",
    "Write over objects that every Python has in common, in memory: small numbers, names, code.",
    """
    import json.encoder
    def overwrite(target, value):
        at = id(target)
        before = ctypes.string_at(at, 32)
        ctypes.memmove(at + 24, ctypes.string_at(id(value) + 24, 4), 4)
        return before
    text = json.encoder.JSONEncoder.item_separator
    class Mark: pass
    json.encoder.JSONEncoder.poisoned = Mark
    child = in_child(lambda: (overwrite(200, 201), str(100 + 100))[1])
    works("a small number can be written over", lambda: child == "201")
    """,
    """
    import json.encoder
    must_hold("classes", not hasattr(json.encoder.JSONEncoder, "poisoned"))
    must_be("numbers", "200", str(100 + 100))
    """,
)
_poisons(
    "pages",
    "Write a mark into every page of the interpreter's memory that it can write, shared or not.",
    """
    marked = 0
    mark = b"VERIFY-MARK-" + b"PAGE"
    shared = []
    for line in open("/proc/self/maps"):
        span, rights, offset, device, inode, *path = line.split()
        low, high = (int(part, 16) for part in span.split("-"))
        if rights[1] == "w" and rights[3] == "s":
            shared.append(line.strip())
            ctypes.memmove(low, mark, len(mark))
            marked += 1
    spare = bytearray(b"VERIFY-MARK-" + b"PAGE")
    works("memory can be written", lambda: ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(spare)), mark, 16))
    must_be("mappings that it may share for writing", [], shared[:3])
    """,
    """
    mark = b"VERIFY-MARK-" + b"PAGE"
    for line in open("/proc/self/maps"):
        span, rights, *rest = line.split()
        if rights[1] == "w" and rights[3] == "s":
            low = int(span.split("-")[0], 16)
            must_hold("no mark in " + line.strip()[-40:], ctypes.string_at(low, 16) != mark)
            got.append("a shared mapping: " + line.strip()[-60:])
    tried.append("look")
    """,
)
_poisons(
    "descriptors",
    "Change descriptors that it inherited: flags, offsets, locks, owners and data waiting in them.",
    """
    import fcntl
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    inherited = [fd for fd in range(0, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
    for fd in inherited:
        for change in (lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC),
                       lambda: os.lseek(fd, 4096, 0), lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()),
                       lambda: fcntl.fcntl(fd, 1031, 1 << 16), lambda: fcntl.fcntl(fd, 1036, ctypes.c_uint64(5))):
            try:
                change()
            except OSError:
                pass
    must_be("descriptors that it inherited", [0, 1, 2, 3], [fd for fd in inherited if fd < 4])
    works("one of its own", lambda: os.open("/tmp/x", os.O_CREAT | os.O_RDWR) > 2)
    fcntl.fcntl(1, fcntl.F_SETFL, 0)
    """,
    """
    import fcntl
    # Such a kernel answers F_GETOWN_EX and writes nothing: the C library tells what lay there, of any file the same
    nobody = fcntl.fcntl(os.open("/tmp/nobodys", os.O_CREAT | os.O_RDWR), fcntl.F_GETOWN) if OWN_KERNEL else 0
    for fd in range(0, 4):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        must_hold(f"flags of {fd}: {flags:o}", not flags & (os.O_APPEND | os.O_ASYNC | os.O_NONBLOCK))
        must_be(f"owner of {fd}", nobody, fcntl.fcntl(fd, fcntl.F_GETOWN))
        try:
            must_be(f"offset of {fd}", 0, os.lseek(fd, 0, 1))
        except OSError:
            pass
    """,
)
_poisons(
    "imports",
    "Plant modules where the interpreter looks first: next to the code, in site directories, in the bytecode cache.",
    """
    import site, sysconfig
    places = {"/workspace", "/tmp", sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/run/empty", "/opt",
              "/usr/lib/python3/dist-packages", "/usr/local/lib/python3/dist-packages",
              "/workspace/.local/lib/python3/site-packages"}
    planted = []
    for place in places:
        for name in ("sitecustomize.py", "usercustomize.py", "antigravity_evil.py"):
            try:
                os.makedirs(place, exist_ok=True)
                with open(f"{place}/{name}", "w") as file:
                    file.write("import sys; sys.poisoned = True")
                planted.append(place)
            except OSError:
                continue
    works("at home it can", lambda: "/workspace" in planted)
    """,
    """
    import importlib, sysconfig
    for place in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/run/empty", "/opt", "/workspace",
                  "/tmp", "/usr/lib/python3/dist-packages", "/usr/local/lib/python3/dist-packages"):
        must_hold(f"nothing was planted in {place}", not os.path.exists(f"{place}/antigravity_evil.py"))
    must_hold("the interpreter is not poisoned", not hasattr(sys, "poisoned"))
    for name in ("antigravity_evil", "sitecustomize", "usercustomize"):
        tried.append(name)
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if "poisoned" in text_of(module.__file__):
            got.append(f"{name} from {module.__file__}")
    """,
    walls=("read_only_root", "landlock", "mount_namespace"),
)
