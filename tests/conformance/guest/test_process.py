"""The process as foreign code finds it, and what foreign code may do to it without losing its result."""

from __future__ import annotations

import pytest

from skillyard.domain.sandbox.frames import FrameFault, FrameReader, Result
from tests.conformance.guest.conftest import PREFIX, GuestBox


def test_it_looks_like_a_plain_interpreter(box: GuestBox) -> None:
    code = """
import gc, os, signal, sys
def main(args):
    return {
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "name": __name__,
        "main": sys.modules["__main__"] is sys.modules[__name__],
        "path": sys.path[0],
        "gc": gc.isenabled(),
        "stdin": sys.stdin.read(),
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigpipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "names": [sys.stdin.name, sys.stdout.name, sys.stderr.name, sys.stdout.encoding, sys.stdout.mode],
        "umask": os.umask(0),
    }
"""
    workspace = str(box.workspace)
    assert box.call(code).value == {
        "cwd": workspace,
        "argv": [f"{workspace}/__run__.py"],
        "name": "__run__",
        "main": True,
        "path": workspace,
        "gc": True,
        "stdin": "",
        "sigint": True,
        "sigpipe": True,
        "sigterm": True,
        "blocked": 0,
        "names": ["<stdin>", "<stdout>", "<stderr>", "utf-8", "w"],
        "umask": 0o022,
    }


def test_nothing_of_ours_can_be_imported(box: GuestBox) -> None:
    code = """
import sys
def main(args):
    found = [n for n in sys.modules if n.partition(".")[0] in ("inside", "skillyard")]
    try:
        import inside
    except ImportError:
        return found
"""
    assert box.call(code).value == {"result": []}


def test_a_main_guard_is_not_entered(box: GuestBox) -> None:
    code = "def main(args): return 1\nif __name__ == '__main__': raise SystemExit('demo')"
    assert box.call(code).value == {"result": 1}


def test_secrets_arrive_in_the_environment_and_reach_children(box: GuestBox) -> None:
    code = """
import os, subprocess
def main(args):
    shell = subprocess.run(["/bin/sh", "-c", "echo $TOKEN"], capture_output=True, text=True)
    return [os.environ["TOKEN"], shell.stdout]
"""
    assert box.call(code, env={"TOKEN": "abc"}).value == {"result": ["abc", "abc\n"]}


def test_stdout_and_stderr_keep_their_order(box: GuestBox) -> None:
    code = """
import os, sys
def main(args):
    print("1 out")
    print("2 err", file=sys.stderr)
    print("3 out", end="")
    sys.stdout.flush()
    sys.stderr.write(" 4 err without end")
    os.write(1, b" 5 raw\\n")
    print("6 éü\\udc80")
    print("7 left in the buffer", end="")
"""
    logs = box.call(code.replace("\\udc80", "")).logs
    assert logs == "1 out\n2 err\n3 out 4 err without end 5 raw\n6 éü\n7 left in the buffer"


def test_names_that_are_not_utf8_can_be_printed(box: GuestBox) -> None:
    code = "import sys\ndef main(args):\n    print(ascii('\\udcff'))\n    sys.stderr.write('\\udcff\\n')"
    assert box.call(code).logs == "'\\udcff'\n\\udcff\n"


@pytest.mark.parametrize(
    "mischief",
    [
        "sys.stdout.close()",
        "sys.stdout = None; sys.stderr = None",
        "sys.stdout = sys.stderr = Broken()",
        "del sys.stdout",
        "os.close(1); os.close(2)",
        "os.write = os.getpid = os._exit = json.dumps = json.JSONEncoder = None",
        "sys.modules.clear()",
        "sys.meta_path.clear(); sys.path.clear()",
        "threading.Thread(target=threading.Event().wait).start()",
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "atexit.register(os._exit, 9)",
        "sys.setrecursionlimit(60)",
        "os.chdir('/'); os.environ.clear()",
        "gc.disable(); gc.set_threshold(0)",
        "os.fork() or os._exit(0)",
        "subprocess.Popen(['/bin/sleep', '30'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
    ],
)
def test_the_result_survives(box: GuestBox, mischief: str) -> None:
    code = f"""
import atexit, builtins, gc, json, os, signal, subprocess, sys, threading
class Broken:
    def flush(self): raise SystemExit("flush")
def raising(*args):
    raise KeyboardInterrupt("from a handler")
def main(args):
    try:
        {mischief}
    except KeyboardInterrupt:
        pass
    return 1
"""
    ran = box.call(code)
    assert ran.value == {"result": 1}
    assert ran.status == 0


@pytest.mark.parametrize(
    "trap",
    [
        "signal.signal(signal.SIGALRM, raising); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
        "sys.settrace(raising)",
        "sys.setprofile(raising)",
    ],
)
def test_what_interrupts_our_own_code_costs_no_frame(box: GuestBox, trap: str) -> None:
    code = f"""
import signal, sys
calls = []
def raising(*args):
    calls.append(1)
    if len(calls) % 3 == 0: raise KeyboardInterrupt("from a handler")
def main(args):
    try:
        {trap}
    except KeyboardInterrupt:
        pass
    return 1
"""
    ran = box.call(code)
    assert ran.status == 0
    if not isinstance(ran.final, Result):
        assert ran.failure.type == "KeyboardInterrupt"


def test_broken_builtins_end_without_a_result(box: GuestBox) -> None:
    ran = box.call("import builtins\ndef main(args): builtins.len = builtins.isinstance = builtins.sum = None")
    assert ran.final is None or ran.failure.type == "TypeError"


def test_threads_left_behind_write_nothing_after_the_result(box: GuestBox) -> None:
    code = """
import threading
from runtime import blobs
started = threading.Event()
def forever():
    while True:
        try:
            blobs.write_bytes(b"x")
        except RuntimeError as error:
            assert "ended" in str(error) or "at most" in str(error)
        started.set()
def main(args):
    threading.Thread(target=forever).start()
    started.wait(10)
"""
    assert box.call(code, max_blobs=10**6).value == {}


@pytest.mark.parametrize(
    ("statement", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6)]
)
def test_a_process_that_ends_itself_has_said_nothing(box: GuestBox, statement: str, status: int) -> None:
    ran = box.call(f"import os\ndef main(args): {statement}")
    assert (ran.final, ran.status) == (None, status)


def test_a_closed_channel_is_told_in_the_logs(box: GuestBox) -> None:
    ran = box.call("import os\ndef main(args): os.closerange(3, 64)")
    assert ran.final is None
    assert "the result cannot be sent" in ran.logs


def test_children_do_not_inherit_the_channel(box: GuestBox) -> None:
    code = "import os, subprocess\ndef main(args):\n    return subprocess.run(['/bin/ls', '/proc/self/fd'],"
    code += " capture_output=True, text=True, close_fds=False).stdout.split()"
    found = set(box.call(code).value["result"])
    assert found <= {"0", "1", "2", "3"}  # 3 is the directory that ls reads


@pytest.mark.parametrize(
    ("ending", "status", "logs"),
    [
        ("return 'child'", 0, ""),
        ("raise ValueError('in the child')", 1, "ValueError: in the child"),
        ("sys.exit(4)", 4, ""),
        ("sys.exit()", 0, ""),
    ],
)
def test_a_forked_child_that_returns_ends_as_a_script_does(box: GuestBox, ending: str, status: int, logs: str) -> None:
    code = f"""
import os, sys
def main(args):
    pid = os.fork()
    if pid == 0:
        {ending}
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    ran = box.call(code)
    assert ran.value == {"result": status}
    assert logs in ran.logs if logs else ran.logs == ""
    assert len(ran.frames) == 1


def test_functions_of_the_code_cross_to_forked_workers(box: GuestBox) -> None:
    code = """
import multiprocessing
def square(n): return n * n
def main(args):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(square, range(5))
"""
    assert box.call(code).value == {"result": [0, 1, 4, 9, 16]}


def test_the_code_is_a_module_like_any_other(box: GuestBox) -> None:
    code = '''
from __future__ import annotations
import dataclasses, importlib, inspect, pickle, typing, warnings
@dataclasses.dataclass
class Point:
    """A point."""
    x: int
    other: Point | None = None
def main(args):
    assert typing.get_type_hints(Point)["other"] == Point | None
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    assert inspect.getsource(Point).startswith("@dataclasses.dataclass\\nclass Point:")
    assert inspect.getsource(main).startswith("def main(args):")
    assert inspect.getmodule(main) is importlib.import_module("__run__")
    import linecache
    linecache.clearcache()
    assert inspect.getsource(main).startswith("def main(args):")
    return __file__
'''
    assert box.call(code).value == {"result": f"{box.workspace}/__run__.py"}
    assert list(box.workspace.iterdir()) == []


def test_modules_in_the_workspace_can_be_imported(box: GuestBox) -> None:
    (box.workspace / "helper.py").write_text("value = 5")
    assert box.call("import helper\ndef main(args): return helper.value").value == {"result": 5}


def test_what_the_code_writes_to_the_channel_is_found_out(box: GuestBox) -> None:
    forged = 'import os\ndef main(args):\n    for fd in range(3, 10):\n        try: os.write(fd, b"%s")\n'
    forged += "        except OSError: pass\n    return 1"
    with pytest.raises(FrameFault, match="unknown type 0x5a"):
        box.call(forged % "Z")
    with pytest.raises(FrameFault, match="after the last frame"):
        box.call(forged % "R\\0\\0\\0\\2{}")


def test_forged_blob_frames_carry_no_id_of_another_run(box: GuestBox) -> None:
    reader = FrameReader()
    header = f'{{"n":1,"kind":"text/plain","blob_id":"{PREFIX}9"}}'.encode()
    (frame,) = reader.feed(b"B" + len(header).to_bytes(4, "big") + header)
    assert repr(frame) == "BlobBegin(n=1, kind='text/plain', path='')"
