"""What the host learns of an exception (skills-protocol §4, rows 11 and 12)."""

from __future__ import annotations

import errno
import os

import pytest

from skillyard.guest.failure import MAX_TRACEBACK
from tests.conformance.guest.conftest import GuestBox


@pytest.mark.parametrize(
    ("statement", "type_", "message"),
    [
        ("raise ValueError('wrong')", "ValueError", "wrong"),
        ("{}['key']", "KeyError", "'key'"),
        ("import no_such_module", "ModuleNotFoundError", "No module named 'no_such_module'"),
        ("from os import nothing_such", "ImportError", "cannot import name 'nothing_such'"),
        ("assert False", "AssertionError", ""),
        ("raise SystemExit(3)", "SystemExit", "exit status 3"),
        ("import sys; sys.exit(2)", "SystemExit", "exit status 2"),
        ("import sys; sys.exit('a reason')", "SystemExit", "a reason"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise MemoryError('mine')", "MemoryError", "mine"),
        ("raise TimeoutError('slow')", "TimeoutError", "slow"),
        ("raise GeneratorExit", "GeneratorExit", ""),
        ("raise Own('own')", "Own", "own"),
        ("raise ExceptionGroup('both', [ValueError(1), TypeError(2)])", "ExceptionGroup", "both (2 sub-exceptions)"),
        ("exec('1 +')", "SyntaxError", "invalid syntax"),
        ("main(args)", "RecursionError", "maximum recursion depth exceeded"),
        ("input()", "EOFError", "EOF when reading a line"),
    ],
)
def test_type_and_message(box: GuestBox, statement: str, type_: str, message: str) -> None:
    failure = box.call(f"class Own(BaseException): ...\ndef main(args):\n    {statement}").failure
    assert (failure.type, failure.message[: len(message) or None]) == (type_, message)


def test_the_module_itself_may_fail(box: GuestBox) -> None:
    failure = box.call("raise ValueError('early')").failure
    assert (failure.type, failure.message) == ("ValueError", "early")
    assert "in <module>\n    raise ValueError('early')" in failure.traceback


def test_code_that_does_not_compile_shows_the_line(box: GuestBox) -> None:
    failure = box.call("x = 1\ndef main(args)\n    return 1\n").failure
    assert failure.type == "SyntaxError"
    assert "line 2" in failure.traceback
    assert "def main(args)" in failure.traceback


@pytest.mark.parametrize("code", ["\0", "(" * 5000, "x = '\ud800'"])
def test_code_that_cannot_be_read_fails_cleanly(box: GuestBox, code: str) -> None:
    assert box.call(code).failure.type in ("SyntaxError", "ValueError", "MemoryError", "UnicodeEncodeError")


def test_a_full_disk_keeps_its_number(box: GuestBox) -> None:
    code = "import errno\ndef main(args): raise OSError(errno.ENOSPC, 'No space left on device', 'out.csv')"
    failure = box.call(code).failure
    assert (failure.type, failure.errno) == ("OSError", errno.ENOSPC)
    assert failure.message == "[Errno 28] No space left on device: 'out.csv'"


NO_FILES = "(a run has no files of yours: name blobs in input_blobs and read /blobs/<id>; write to /workspace/out)"
NO_PIP = "(packages come by packages=[...] or environment=..., not by pip in a run)"


@pytest.mark.parametrize(
    ("body", "remedy"),
    [
        ("open('sales.csv')", NO_FILES),
        ("open('/nowhere/result.json', 'w')", NO_FILES),
        ("import pathlib; pathlib.Path('sales.csv').read_text()", NO_FILES),
        ("import subprocess; subprocess.run(['no-such-program'])", ""),
        ("raise OSError(30, 'Read-only file system', '/x')", "(only /workspace and /tmp can be written; files in"),
        (
            "import argparse as a; p = a.ArgumentParser(); p.add_argument('x'); p.parse_args([])",
            "(a run has no command",
        ),
        ("import sys; sys.exit(2)", ""),
        ("import os; os.environ['API_KEY']", "(a run has none of your variables: pass values in args)"),
        ("{}['API_KEY']", ""),
        ("import subprocess as s; s.run('false; pip install x || false', shell=True, check=True)", NO_PIP),
        ("import subprocess as s; s.run(['false', 'pip', 'install'], check=True)", NO_PIP),
        ("import subprocess as s; s.run(['false'], check=True)", ""),
        ("class CalledProcessError(Exception): cmd = property(lambda _: 1 / 0)\n    raise CalledProcessError('x')", ""),
    ],
)
def test_what_a_run_cannot_have_is_told_with_a_remedy(box: GuestBox, body: str, remedy: str) -> None:
    message = box.call(f"def main(args):\n    {body}").failure.message
    assert remedy in message
    assert remedy or "(" not in message.replace("()", "")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("x = 1\nreturn x", "(put it into def main(args), which is called)"),
        ("import asyncio\nawait asyncio.sleep(0)", "(put it into async def main(args), which is called)"),
        (
            "x = 1\n!pip install pandas",
            "(line 2 of the code is a command of notebooks: send plain Python; packages come",
        ),
        ("%matplotlib inline\nx = 1", "(line 1 of the code is a command of notebooks"),
    ],
)
def test_code_of_a_notebook_is_told_so(box: GuestBox, code: str, remedy: str) -> None:
    failure = box.call(code, entrypoint=None).failure
    assert failure.type == "SyntaxError"
    assert remedy in failure.message


def test_a_hostile_syntax_error_is_told_as_it_is(box: GuestBox) -> None:
    code = "error = SyntaxError('mine')\nerror.msg, error.lineno = [], '1'\nraise error"
    assert box.call(code, entrypoint=None).failure.type == "SyntaxError"


@pytest.mark.parametrize(
    "body",
    [
        "class E(Exception):\n    errno = property(lambda self: 1 / 0)",
        "class E(OSError):\n    errno = 'no number'",
    ],
)
def test_an_errno_that_is_none_is_left_out(box: GuestBox, body: str) -> None:
    failure = box.call(f"{body}\ndef main(args): raise E('x')").failure
    assert (failure.type, failure.errno) == ("E", None)


def test_the_traceback_shows_the_code_and_nothing_of_ours(box: GuestBox) -> None:
    code = """
import json
def helper(text):
    return json.loads(text)
def main(args):
    try:
        helper("{")
    except ValueError as error:
        raise KeyError("outer") from error
"""
    traceback = box.call(code).failure.traceback
    assert str(box.tree) not in traceback
    assert os.path.dirname(os.__file__) not in traceback
    assert f'File "{box.workspace}/__run__.py", line 4, in helper\n    return json.loads(text)' in traceback
    assert 'File "<json/decoder.py>"' in traceback
    assert "direct cause" in traceback
    assert traceback.rstrip().endswith("KeyError: 'outer'")


def test_a_library_that_fails_deep_down_is_one_line(box: GuestBox) -> None:
    code = "import concurrent.futures as f\ndef main(args):\n    f.ThreadPoolExecutor(1).submit(lambda: 1/0).result()\n"
    lines = box.call(code).failure.traceback.splitlines()
    own, library, thread = [line for line in lines if line.startswith("  File ")]
    assert own.endswith(", in main")
    assert library.startswith('  File "<concurrent/futures/thread.py>"')
    assert library.endswith(", in run (3 calls deep)")
    assert thread.endswith(", in <lambda>")
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_async_code_shows_itself_only(box: GuestBox) -> None:
    code = "async def inner(): return 1 / 0\nasync def main(args): return await inner()"
    traceback = box.call(code).failure.traceback
    assert "asyncio" not in traceback
    assert traceback.count("File ") == 2


def test_a_skills_code_is_shown_from_its_mount(box: GuestBox) -> None:
    box.mount_skill("a.b", {"code/main.py": "def main(args):\n    return 1 / args['zero']\n"})
    traceback = box.call(None, skill="a.b", args={"zero": 0}).failure.traceback
    assert f'File "{box.root}/skills/a.b/code/main.py", line 2, in main\n    return 1 / args' in traceback
    assert traceback.count("File ") == 1


def test_groups_are_trimmed_too(box: GuestBox) -> None:
    code = """
import json
def one():
    try: json.loads("{")
    except ValueError as error: return error
def main(args): raise ExceptionGroup("all", [one()])
"""
    traceback = box.call(code).failure.traceback
    assert os.path.dirname(os.__file__) not in traceback
    assert "JSONDecodeError" in traceback


@pytest.mark.parametrize(
    "code",
    [
        "def f(n):\n    if n: f(n - 1)\n    raise ValueError('x' * 100)\ndef main(args): f(90)",
        "def main(args):\n    error = None\n    for n in range(200):\n        try: raise ValueError(n) from error\n"
        "        except ValueError as e: error = e\n    raise error",
        "def main(args): raise ValueError('é' * 100_000)",
    ],
)
def test_a_traceback_is_bounded_with_head_and_tail(box: GuestBox, code: str) -> None:
    failure = box.call(code).failure
    assert 0 < len(failure.traceback.encode()) <= MAX_TRACEBACK
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert len(failure.message) <= 8193


@pytest.mark.parametrize(
    "body",
    [
        "def __str__(self): raise SystemExit('gotcha')",
        "def __str__(self): return 1",
        "def __str__(self): return Sly('sly')",
        "def __getattribute__(self, name): raise SystemExit(1)",
        "__cause__ = property(lambda self: 1 / 0)",
        "__traceback__ = property(lambda self: 1 / 0)",
        "__context__ = property(lambda self: self)",
        "__notes__ = 'no list'",
        "__notes__ = property(lambda self: 1 / 0)",
    ],
)
def test_hostile_exceptions_are_reported_all_the_same(box: GuestBox, body: str) -> None:
    code = f"""
class Sly(str):
    def __getitem__(self, key): raise SystemExit(2)
    def __len__(self): raise SystemExit(2)
class Hostile(Exception):
    {body}
def main(args): raise Hostile("text")
"""
    assert box.call(code).failure.type == "Hostile"


def test_a_hostile_class_name_is_no_type(box: GuestBox) -> None:
    code = """
class Meta(type):
    __name__ = property(lambda cls: 1 / 0)
def main(args): raise Meta("bad\\nname", (Exception,), {})("x")
"""
    assert box.call(code).failure.type == "Exception"


def test_endless_chains_end(box: GuestBox) -> None:
    code = """
def main(args):
    error = ValueError("loop")
    error.__cause__ = other = TypeError("back")
    other.__cause__ = error
    raise error
"""
    assert box.call(code).failure.type == "ValueError"


def test_memory_that_runs_out_is_reported_with_what_is_left(box: GuestBox) -> None:
    code = """
import resource
def main(args):
    resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 16))
"""
    failure = box.call(code).failure
    assert failure.type == "MemoryError"


@pytest.mark.parametrize("limit", [40, 1_000_000])
def test_a_changed_recursion_limit_does_not_hinder_the_report(box: GuestBox, limit: int) -> None:
    code = f"import sys\ndef main(args):\n    sys.setrecursionlimit({limit})\n    raise ValueError('seen')"
    assert box.call(code).failure.message == "seen"


_IN_THE_WAY = {
    "its own modules have names of the standard library": (
        "for name in ('token', 'traceback', 'json'):\n"
        "    open(f'{name}.py', 'w').write('mine = 1')\n"
        "    assert __import__(name).mine\n"
    ),
    "it took all descriptors": (
        "import os\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
    ),
    "it emptied the path": "import sys\nsys.path.clear()\nsys.path_importer_cache.clear()\n",
    "it stands in another place": "import os\nos.mkdir('elsewhere')\nos.chdir('elsewhere')\n",
}


@pytest.mark.parametrize("before", _IN_THE_WAY.values(), ids=_IN_THE_WAY)
def test_a_failure_is_told_whatever_the_code_left(box: GuestBox, before: str) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    failure = box.call(f"{limit}{before}def main(args):\n    raise ValueError('wrong')\n").failure
    assert (failure.type, failure.message) == ("ValueError", "wrong")
    assert failure.traceback.endswith("    raise ValueError('wrong')\nValueError: wrong\n")


def test_a_failure_that_nothing_more_can_be_told_of_has_its_type(box: GuestBox) -> None:
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\ndef main(args): raise ValueError('x')\n"
    )
    assert box.call(code).failure.type == "ValueError"


def test_a_run_that_succeeds_imports_nothing_that_tells_of_failures(box: GuestBox) -> None:
    code = "import sys\ndef main(args): return sorted({'re', 'json', 'traceback', 'ctypes'} & {*sys.modules})"
    assert box.call(code).value == {"result": []}


def test_lines_of_the_code_are_known_once_they_are_asked_for(box: GuestBox) -> None:
    code = "def main(args):\n    import linecache, sys\n    return linecache.getline(__file__, 2), len(sys.meta_path)\n"
    line, finders = box.call(code).value["result"]
    assert line == "    import linecache, sys\n"
    assert finders == box.call("import linecache, sys\ndef main(args): return len(sys.meta_path)").value["result"]
