"""The material of the demo: a table of orders, code that the agent writes to work with it, and code that attacks."""

from __future__ import annotations

import csv
import random
from pathlib import Path

SKILL = "examples.csv.summarize"

QUESTION = "Which region sells best, and what is its average order?"

ANSWER = """\
from skills.examples.csv.summarize import rows_of

def main(args):
    sums = {}
    for row in rows_of(args["orders"]):
        if row["amount"]:
            count, total = sums.get(row["region"], (0, 0.0))
            sums[row["region"]] = (count + 1, total + float(row["amount"]))
    best = max(sums, key=lambda region: sums[region][1])
    count, total = sums[best]
    return {"region": best, "orders": count, "average": round(total / count, 2)}
"""

ATTACKS = (
    "read /etc/shadow",
    "look at the host's processes",
    "connect to 1.1.1.1:443",
    "become root",
    "overwrite the interpreter",
    "mount a file system",
)
"""What :data:`HOSTILE` tries, in its order."""

HOSTILE = """\
import ctypes, os, socket

def main(args):
    tries = (shadow, processes, connect, root, overwrite, mount)
    return {"tries": [attempt(one) for one in tries]}

def attempt(act):
    try:
        return act()
    except Exception as error:
        return [False, f"{type(error).__name__}: {error}"]

def shadow():
    return [True, open("/etc/shadow").read()]

def processes():
    seen = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    others = [pid for pid in seen if pid != os.getpid() and looks_into(pid)]
    return [bool(others), f"sees {len(seen)}, may look into {others or 'none'} but itself"]

def looks_into(pid):
    try:
        return open(f"/proc/{pid}/environ", "rb").read() is not None
    except OSError:
        return False

def connect():
    socket.create_connection(("1.1.1.1", 443), timeout=3).close()
    return [True, "connected"]

def root():
    os.setuid(0)
    return [True, f"uid {os.getuid()}"]

def overwrite():
    open(os.__file__, "a").close()
    return [True, "opened for writing"]

def mount():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        return [True, "mounted"]
    return [False, f"refused: {os.strerror(ctypes.get_errno())}"]
"""
"""Each try gives whether it succeeded, and what it saw."""

CROWD = """\
import os, time

def main(args):
    children = []
    try:
        while len(children) < 2000:
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            children.append(pid)
    except OSError as error:
        return {"made": len(children), "seen": error.strerror}
    return {"made": len(children), "seen": "nobody minds"}
"""

CROWD_LIMITS = {"pids": 64}

HOG = """\
def main(args):
    held = [bytearray(16 << 20) for _ in range(64)]
    return {"held": len(held)}
"""

HOG_LIMITS = {"memory_mb": 128}

HEADER = ("order_id", "day", "region", "product", "quantity", "amount")
REGIONS = {"north": 31, "south": 22, "east": 19, "west": 28}
"""Regions by the weight of each."""
_PRODUCTS = {"lamp": 24.5, "chair": 89.0, "desk": 310.0, "shelf": 129.9, "rug": 64.25}
_SEED = 20261121


def write_orders(path: Path, rows: int) -> int:
    """Writes the same ``rows`` orders each time and returns the size of the file in bytes."""
    chance = random.Random(_SEED)
    products = list(_PRODUCTS)
    regions = chance.choices(list(REGIONS), weights=list(REGIONS.values()), k=rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEADER)
        for number, region in enumerate(regions, 1):
            product, quantity = products[int(chance.random() * len(products))], 1 + int(chance.random() ** 2 * 9)
            day = f"2026-{1 + number * 12 // (rows + 1):02}-{1 + number % 28:02}"
            amount = "" if number % 997 == 0 else f"{_PRODUCTS[product] * quantity:.2f}"
            writer.writerow((number, day, region, product, quantity, amount))
    return path.stat().st_size
