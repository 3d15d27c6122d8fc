"""What a run imports is noticed: what it asked for itself, and which of those that were there already it used."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from skillyard.domain.frames import FrameReader, Imports
from skillyard.domain.guest_request import encode_request
from tests.guest.conftest import GuestBox

PACKAGES = {
    "big/__init__.py": "from big import inner\nimport small\n",
    "big/inner.py": "import json\n",
    "big/later.py": "",
    "small.py": "def lazily():\n    import lazy\n",
    "lazy.py": "",
    "broken.py": "import small\nraise ValueError\n",
    "warm/__init__.py": "import small as also\n",
    "warm/part.py": "x = 1\n",
}
SERVE = """
import gc, json, os, socket
packages, requests = sys.argv[1:]
sys.path.append(packages)
{ahead}
from inside import main
main.prepare(packages)
def run(request):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        main.serve(theirs.fileno(), theirs.fileno())
        os._exit(0)
    theirs.close()
    ours.sendall(request); ours.shutdown(socket.SHUT_WR)
    frames = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    os.waitpid(pid, 0)
    return frames
for request in json.load(open(requests)):
    print(run(request.encode()).hex())
"""

Drive = Callable[..., str]


def noticed(box: GuestBox, drive: Drive, *codes: str, ahead: str = "") -> list[Any]:
    """What runs of one warm interpreter tell of their imports; None for nothing. ``ahead`` is imported before."""
    packages = box.root / "packages"
    for name, source in PACKAGES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(source)
    requests = [encode_request(box.request(code)).decode() for code in codes]
    (box.root / "requests").write_text(json.dumps(requests))
    printed = drive(SERVE.format(ahead=ahead), str(packages), str(box.root / "requests"))
    return [_imports(bytes.fromhex(line)) for line in printed.splitlines()]


def _imports(channel: bytes) -> Imports | None:
    frames = FrameReader().feed(channel)
    return next((frame for frame in frames if isinstance(frame, Imports)), None)


def test_what_a_run_asks_for_and_not_what_follows_from_it(box: GuestBox, drive: Drive) -> None:
    main = "\ndef main(args): return 1"
    told = noticed(
        box,
        drive,
        "import json, csv" + main,
        "import big" + main,
        "import csv\nfrom big import later\nimport small" + main,
        "import big.later" + main,
        "def main(args):\n    import small\n    small.lazily()",
        "try:\n    import broken\nexcept ValueError:\n    pass\nimport small" + main,
        "import small\nraise ValueError",
    )
    assert told == [
        None,
        Imports(("big",)),
        Imports(("big", "big.later")),
        Imports(("big", "big.later")),
        Imports(("small", "lazy")),
        None,
        Imports(("small",)),
    ]


def test_what_was_there_already_is_noticed_when_it_is_used(box: GuestBox, drive: Drive) -> None:
    main = "\ndef main(args): return 1"
    told = noticed(
        box,
        drive,
        "x = 1" + main,
        "import warm" + main,
        "from warm.part import x" + main,
        "from importlib import import_module\nimport_module('small')" + main,
        "import warm, big" + main,
        "import warm\nassert type(warm.__spec__).__name__ == 'ModuleSpec'\nassert 'warm' in repr(warm.__spec__)\n"
        "import importlib; assert importlib.reload(warm) is warm" + main,
        ahead="import warm, warm.part",
    )
    assert told[:4] == [None, Imports((), ("warm",)), Imports((), ("warm",)), Imports((), ("small",))]
    assert told[4] == Imports(("big",), ("small", "warm"))
    assert told[5] is not None


def test_foreign_code_can_spoil_the_notice_and_nothing_else(box: GuestBox, drive: Drive) -> None:
    code = "import sys, json\nimport big\nsys.modules.clear()\njson.dumps = None\ndef main(args): return 1"
    many = "import sys, types\nfor n in range(100): sys.meta_path[0].find_spec(f'small.x{n}')\ndef main(args): return 1"
    told = noticed(box, drive, code, many)
    assert told[0] is None
    assert told[1] is None or len(told[1].imported) <= 64
