"""What runs do when everything around them is killed."""

from __future__ import annotations

QUICK = "def main(args):\n    return {'n': args['n']}\n"

BRIEF = "import time\ndef main(args):\n    time.sleep(args['seconds'])\n    return {'n': args['n']}\n"

FOREVER = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(600)\n"

FAMILY = """
import os, signal, subprocess, sys, time

def main(args):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    print("begun", flush=True)
    time.sleep(600)
"""

CHATTER = """
import time

def main(args):
    print("begun", flush=True)
    while True:
        print("x" * 20000, flush=True)
        time.sleep(0.005)
"""

BLOBS = """
import os, time
from runtime import blobs

def main(args):
    print("begun", flush=True)
    while True:
        blobs.write_bytes(os.urandom(100_000))
        time.sleep(0.01)
"""

TOIL = """
import hashlib

def main(args):
    print("begun", flush=True)
    while True:
        hashlib.sha256(b"x" * 100_000).digest()
"""

ENDLESS = (FOREVER, FAMILY, CHATTER, BLOBS, TOIL)


def mixed(number: int) -> str:
    """One in four comes to its end, the others do not."""
    return QUICK if number % 4 == 0 else ENDLESS[number % len(ENDLESS)]
