"""The warm interpreter: prepared once, forked for every run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cryptography
import pytest

from skillyard.domain.sandbox.frames import FrameReader, Result
from skillyard.domain.sandbox.spec import encode_request
from tests.conformance.guest.conftest import GuestBox

SERVE = """
import gc, json, os, socket
{preload}
from inside import main
main.prepare()
gc.collect(); gc.freeze(); gc.disable()
def run(request, ahead=True):
    ours, theirs = socket.socketpair()
    if not ahead:
        ours.sendall(request); ours.shutdown(socket.SHUT_WR)
    pid = os.fork()
    if pid == 0:
        ours.close()
        main.reseed()
        main.serve(theirs.fileno(), theirs.fileno())
        os._exit(0)
    theirs.close()
    if ahead:
        ours.sendall(request); ours.shutdown(socket.SHUT_WR)
    frames = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    os.waitpid(pid, 0)
    return frames
for request, ahead in json.load(open(sys.argv[1])):
    print(run(request.encode(), ahead).hex())
"""

Drive = Callable[..., str]


def serve(box: GuestBox, drive: Drive, *requests: dict[str, Any], ahead: bool = True, preload: str = "") -> list[Any]:
    """What forks of one warm interpreter return."""
    (box.root / "requests").write_text(json.dumps([[encode_request(r).decode(), ahead] for r in requests]))
    printed = drive(SERVE.format(preload=preload), str(box.root / "requests"))
    return [value(bytes.fromhex(line)) for line in printed.splitlines()]


def value(channel: bytes) -> Any:
    reader = FrameReader()
    reader.feed(channel)
    final = reader.finish()
    assert isinstance(final, Result), final
    return final.value()


def test_forks_ahead_and_on_demand(box: GuestBox, drive: Drive) -> None:
    request = box.request("def main(args): return {'sum': sum(args['xs'])}", args={"xs": [1, 2]})
    for ahead in (True, False):
        assert serve(box, drive, request, request, ahead=ahead) == [{"sum": 3}, {"sum": 3}]


def test_forks_draw_different_numbers(box: GuestBox, drive: Drive) -> None:
    preload = (
        "import multiprocessing.process, random, ssl, tempfile, uuid\n"
        "random.random(); next(tempfile._get_candidate_names()); uuid.uuid1(); context = ssl.create_default_context()"
    )
    code = """
import multiprocessing, random, ssl, tempfile, uuid
def main(args):
    return {
        "random": random.random(),
        "temporary": next(tempfile._get_candidate_names()),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "ssl": ssl.RAND_bytes(16).hex(),
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
    }
"""
    drawn = serve(box, drive, *[box.request(code)] * 3, preload=preload)
    for name in drawn[0]:
        assert len({row[name] for row in drawn}) == 3, name


SAME_PID = """
import ctypes, json, os, ssl
sys.path.append(sys.argv[1])
from cryptography.hazmat.primitives.asymmetric import ec
from inside import main
libc = ctypes.CDLL(None, use_errno=True)
USER, PID = 0x10000000, 0x20000000

def draw():
    key = ec.generate_private_key(ec.SECP256R1())
    return [os.getpid(), ssl.RAND_bytes(16).hex(), hex(key.private_numbers().private_value)]

def child(work):
    come, go = os.pipe()
    if os.fork() == 0:
        told = work()
        os.write(go, json.dumps(told).encode())
        os._exit(0)
    os.close(go)
    told = b"".join(iter(lambda: os.read(come, 65536), b""))
    os.wait()
    return json.loads(told)

def first_of_namespace(work):
    if libc.unshare(PID):
        raise SystemExit("unshare: " + os.strerror(ctypes.get_errno()))
    return child(work)

def run(reseed):
    def work():
        if reseed:
            main.reseed()
        return draw()
    return child(lambda: first_of_namespace(work))

def warm():
    draw()
    main.prepare(True)
    return [run(reseed) for reseed in (False, False, True, True)]

if os.geteuid() and libc.unshare(USER):
    print("null")
else:
    print(json.dumps(first_of_namespace(warm)))
"""


def test_each_copy_of_openssl_is_seeded_again_where_it_cannot_tell_a_fork(drive: Drive) -> None:
    """The one of the interpreter and the one that is linked into cryptography, in processes of one pid."""
    told = json.loads(drive(SAME_PID, str(Path(cryptography.__file__).parents[1])))
    if told is None:
        pytest.skip("no user namespaces here")
    assert {pid for pid, *_ in told} == {1}
    assert told[0] == told[1], "this is what would be"
    for kind in (1, 2):
        assert len({drawn[kind] for drawn in told}) == 3


def test_the_global_generator_of_numpy_is_reseeded(box: GuestBox, drive: Drive) -> None:
    script = """
import types
from inside import main
states = []
numpy, random = types.ModuleType("numpy"), types.ModuleType("numpy.random")
numpy.uint32, numpy.frombuffer = "uint32", lambda data, kind: data
random.set_state = states.append
sys.modules.update({"numpy": numpy, "numpy.random": random})
main.prepare()
main.reseed()
main.reseed()
print([(name, len(key), position) for name, key, position in states], states[0] != states[1])
"""
    assert drive(script) == "[('MT19937', 2496, 624), ('MT19937', 2496, 624)] True\n"


def test_a_call_imports_nothing(box: GuestBox, drive: Drive) -> None:
    code = """
import sys
before = set(sys.modules)
def main(args): return 1
"""
    script = f"""
import json, os
from inside import main
main.prepare()
r, w = os.pipe()
before = set(sys.modules)
main.run({encode_request(box.request(code))!r}, w)
print(sorted(set(sys.modules) - before))
"""
    assert drive(script) == "['__run__']\n"


def test_the_rehearsal_leaves_no_trace(box: GuestBox, drive: Drive) -> None:
    box.mount_skill("a.b", {"code/main.py": "import sys\nfound = dict(sys.modules)\n" + STATE})
    for ahead in (True, False):
        (state,) = serve(box, drive, box.request(None, skill="a.b"), ahead=ahead)
        assert state == {
            "run": False,
            "workspaces": 0,
            "linecache": 0,
            "finders": 1,
            "argv": [f"{box.root}/skills/a.b/code/main.py"],
            "blobs": [],
        }


STATE = """
def main(args):
    import linecache, sys
    return {
        "run": "__run__" in found,
        "workspaces": sum("workspace" in p or p in (".", "") for p in sys.path),
        "linecache": sum("__run__" in name for name in linecache.cache),
        "finders": sum(type(f).__name__ == "SkillFinder" for f in sys.meta_path),
        "argv": sys.argv,
        "blobs": list(__import__("runtime").blobs._mounted),
    }
"""


def test_a_rehearsal_is_not_taken_for_the_run(box: GuestBox, drive: Drive) -> None:
    """The code closes the channel, so that its own result was not sent."""
    code = "import os\ndef main(args): os.close(args['fd'])"
    script = f"""
import json, os
from inside import main
main.prepare()
r, w = os.pipe()
guest = main._begin(b"", w)
guest.rehearse()
request = json.loads({encode_request(box.request(code))!r})
request["args"] = {{"fd": w}}
main._run(guest, json.dumps(request).encode())
print(guest.finished)
"""
    assert drive(script).splitlines()[-1] == "False"


def test_a_worker_that_is_given_nothing_says_nothing(box: GuestBox, drive: Drive) -> None:
    script = """
import os, socket
from inside import main
main.prepare()
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    main.serve(theirs.fileno(), theirs.fileno())
    print("served")
    os._exit(0)
theirs.close()
ours.close()
os.wait()
"""
    assert drive(script) == "served\n"


ENDS = """
import os, socket
from inside import main
main.prepare()
ours, theirs = socket.socketpair()
ours.sendall(sys.argv[1].encode())
ours.shutdown(socket.SHUT_WR)
os.environ["CHANNEL"] = str(theirs.fileno())
said = main.serve(theirs.fileno(), theirs.fileno(), end=b"the end")
if said:
    theirs.close()
else:
    theirs.detach()
print(said, ours.recv(1 << 16)[-7:].decode("ascii", "replace"))
"""


def test_the_end_comes_with_the_last_frame(box: GuestBox, drive: Drive) -> None:
    request = encode_request(box.request("def main(args): return 1")).decode()
    assert drive(ENDS, request) == "True the end\n"


def test_a_run_without_a_last_frame_has_no_end(box: GuestBox, drive: Drive) -> None:
    code = "import os\ndef main(args): os.close(int(os.environ['CHANNEL']))"
    assert drive(ENDS, encode_request(box.request(code)).decode()) == "False \n"


def test_the_collector_works_in_a_fork_of_a_frozen_interpreter(box: GuestBox, drive: Drive) -> None:
    code = """
import gc, weakref
class Node: ...
def main(args):
    node = Node(); node.me = node
    gone = weakref.ref(node)
    del node
    gc.collect()
    return [gc.isenabled(), gone() is None]
"""
    assert serve(box, drive, box.request(code)) == [{"result": [True, True]}]


def test_the_warm_up_leaves_nothing_but_caches(box: GuestBox, drive: Drive) -> None:
    script = """
import builtins, linecache, os, signal
from inside import main, process
def state():
    return {
        "modules": sorted(name for name in sys.modules if not name.startswith("inside")),
        "main": sys.modules["__main__"], "path": list(sys.path), "finders": list(sys.meta_path), "argv": sys.argv,
        "environ": dict(os.environ), "directory": os.getcwd(), "sources": sorted(linecache.cache),
        "descriptors": os.listdir("/proc/self/fd"), "limit": sys.getrecursionlimit(), "builtins": [*vars(builtins)],
        "handlers": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGXCPU)],
    }
main.import_all()
main._Guest()
before = state()
main._warm_up()
after = state()
print([name for name in before if before[name] != after[name]])
main.prepare()
print([name for name in sys.modules if name.startswith("inside")], main._warm[0]._notes, main._warm[0]._request)
"""
    assert drive(script) == "[]\n[] {} {}\n"


COUNTS = """
import sys, types
pandas = sys.modules["pandas"] = types.ModuleType("pandas")
pandas.calls = 0
def series(values):
    pandas.calls += 1
    raise SystemExit(3)
pandas.Series = series
"""


def test_a_package_that_was_imported_ahead_is_used_before_a_request_comes(box: GuestBox, drive: Drive) -> None:
    code = "import pandas\ndef main(args): return {'calls': pandas.calls}"
    told = serve(box, drive, box.request(code), preload=COUNTS)
    assert told[0]["calls"] > 1


@pytest.mark.skipif(not os.environ.get("SKILLYARD_TEST_NUMPY"), reason="SKILLYARD_TEST_NUMPY names no packages")
def test_its_use_ahead_imports_nothing_that_the_import_did_not(box: GuestBox, drive: Drive) -> None:
    preload = f"import sys\nsys.path.append({os.environ.get('SKILLYARD_TEST_NUMPY')!r})\nimport numpy, pandas\n"
    new = "[n for n in sys.modules.keys() - sys.before if n[:5] in ('numpy', 'panda')]"
    code = f"import sys\ndef main(args): return {{'new': {new}}}"
    told = serve(box, drive, box.request(code), preload=preload + "sys.before = set(sys.modules)\n")
    assert told[0] == {"new": []}
