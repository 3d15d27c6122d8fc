"""Exhausting the disk: bytes, files, names, sparse files, hidden files."""

from __future__ import annotations

from skillyard.verify.make import Family

FAMILY = Family("disk", walls=("disk",), invariants=(7,))
LIMIT_MB, ASKED_MB = 16, 96

_BODY = """
MIB = 1 << 20
block = b"x" * MIB
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(path, mib):
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            at = 0
            while at < MIB:
                at += file.write(block[at:])
    return mib
works("write a little", fill, "/tmp/little", 2)
os.unlink("/tmp/little")
armed()
total, asked = 0, args["asked"]
try:
    {FILL}
except OSError:
    pass
must_hold(f"wrote {total} MiB with a limit of {args['limit']}", total < asked)
"""


def _fills(name: str, tries: str, fill: str) -> None:
    body = _BODY.replace("{FILL}", fill.strip("\n").replace("\n", "\n    "))
    FAMILY.program(
        name, tries, body,
        ends=("disk", "DiskLimitExceeded", "OSError", "memory", "MemoryLimitExceeded"),
        limits={"memory_mb": 64, "disk_mb": LIMIT_MB},
        args={"limit": LIMIT_MB, "asked": ASKED_MB},
        alone=True,
    )  # fmt: skip


for _place in ("workspace", "tmp", "dev/shm"):
    _fills(
        f"bytes-{_place.replace('/', '-')}",
        f"Write far more than the limit to one file in /{_place}.",
        f'for _ in range(asked):\n    total += fill(f"/{_place}/f{{total}}", 1)',
    )
_fills(
    "three-places",
    "Spread what it writes over /tmp, /workspace and /dev/shm.",
    """
while total < asked:
    for place in ("/tmp", "/workspace", "/dev/shm"):
        total += fill(f"{place}/f{total}", 1)
""",
)
_fills(
    "deleted",
    "Keep deleted files open, which no listing shows.",
    """
held = []
while total < asked:
    held.append(open("/tmp/hidden", "wb", buffering=0))
    os.unlink("/tmp/hidden")
    at = 0
    while at < MIB:
        at += held[-1].write(block[at:])
    total += 1
""",
)
_fills(
    "reserved",
    "Reserve blocks without writing them.",
    """
os.posix_fallocate(os.open("/tmp/f", os.O_CREAT | os.O_RDWR), 0, asked * MIB)
total = asked
""",
)
_fills(
    "mapped",
    "Write through a shared mapping of a sparse file.",
    """
fd = os.open("/tmp/f", os.O_CREAT | os.O_RDWR)
os.truncate(fd, asked * MIB)
def write_all():
    view = mmap.mmap(fd, asked * MIB)
    for at in range(0, asked * MIB, 4096):
        view[at] = 1
    return "all"
total = asked if in_child(write_all) == "all" else 0
""",
)
_fills(
    "sparse",
    "Make one file that claims to be of a tebibyte.",
    """
os.truncate(os.open("/tmp/f", os.O_CREAT | os.O_RDWR), 1 << 40)
total = asked
""",
)


def _names(name: str, tries: str, body: str) -> None:
    FAMILY.program(
        name,
        tries,
        f"""
        works("a few", os.mkdir, "/tmp/few")
        if OWN_KERNEL:
            elsewhere("files are its own kernel's memory there, none is the host's: memory-kernel-memory fills that")
            return evidence()
        armed()
        count = 0
        try:
{body}
        except OSError:
            pass
        if count >= 60_000:
            time.sleep(2)  # where nobody but a watch counts, it has looked by then
        must_hold(f"made {{count}} files with a limit of {{args['limit']}} MiB", count < 60_000)
        """,
        ends=("disk", "DiskLimitExceeded", "OSError"),
        limits={"disk_mb": LIMIT_MB},
        args={"limit": LIMIT_MB},
    )


_names(
    "inodes",
    "Make files until the host has none left.",
    """
            for n in range(60_000):
                os.close(os.open(f"/tmp/few/{n}", os.O_CREAT | os.O_WRONLY))
                count += 1
""",
)
_names(
    "directories",
    "Make directories within directories without end.",
    """
            for n in range(60_000):
                os.mkdir(f"/tmp/few/{n}")
                count += 1
""",
)
_names(
    "hard-links",
    "Give one file names without end.",
    """
            open("/tmp/few/one", "w").close()
            for n in range(60_000):
                os.link("/tmp/few/one", f"/tmp/few/{n}")
                count += 1
""",
)
