"""How programs are called that were written without reading the guide: scripts, any signature, any ending."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.sandbox.frames import Notes
from tests.conformance.guest.conftest import GuestBox


@pytest.mark.parametrize(
    ("definition", "args", "value"),
    [
        ("def main(): return 1", {}, 1),
        ("def main(anything): return anything", {"a": 1}, {"a": 1}),
        ("def main(anything, /): return anything", {"a": 1}, {"a": 1}),
        ("def main(args=None): return args", {"a": 1}, {"a": 1}),
        ("def main(args, verbose=False): return [args, verbose]", {"a": 1}, [{"a": 1}, False]),
        ("def main(args, *rest, **more): return [args, rest, more]", {"a": 1}, [{"a": 1}, [], {}]),
        ("def main(args, verbose=False): return [args, verbose]", {"args": 1, "verbose": True}, [1, True]),
        ("def main(city, days): return [city, days]", {"days": 2, "city": "Bern"}, ["Bern", 2]),
        ("def main(city, days=3): return [city, days]", {"city": "Bern"}, ["Bern", 3]),
        ("def main(days=3): return days", {}, 3),
        ("def main(days=3): return days", {"days": 4}, 4),
        ("def main(*, city): return city", {"city": "Bern"}, "Bern"),
        ("def main(a, b=2, /, c=3, *, d=4): return [a, b, c, d]", {"a": 1, "d": 5}, [1, 2, 3, 5]),
        ("def main(a, b=2, /): return [a, b]", {"b": 1, "a": 0}, [0, 1]),
        ("def main(*args): return args", {"a": 1}, [{"a": 1}]),
        ("def main(*args, **kwargs): return [args, kwargs]", {"a": 1}, [[{"a": 1}], {}]),
        ("def main(**kwargs): return kwargs", {"a": 1}, {"a": 1}),
        ("def main(a, **kwargs): return [a, kwargs]", {"a": 1, "b": 2}, [1, {"b": 2}]),
        ("def main(a, *rest): return [a, rest]", {"a": 1}, [1, []]),
        ("async def main(city, days): return [city, days]", {"days": 2, "city": "Bern"}, ["Bern", 2]),
        ("main = lambda data: data['a']", {"a": 7}, 7),
        ("import functools\nmain = functools.partial(lambda a, b: b, 1)", {"b": 2}, {"b": 2}),
        (
            "class Main:\n    def __call__(self, city, days): return [city, days]\nmain = Main()",
            {"city": 1, "days": 2},
            [1, 2],
        ),
        ("class Main:\n    def go(self, args): return args\nmain = Main().go", {"a": 1}, {"a": 1}),
        (
            "import functools\ndef logged(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return f(*a, **k)\n"
            "    return inner\n@logged\ndef main(city, days=3): return [city, days]",
            {"city": "Bern"},
            ["Bern", 3],
        ),
        ("def bare(f):\n    return lambda *a, **k: f(*a, **k)\n@bare\ndef main(args): return args", {"a": 1}, {"a": 1}),
    ],
)
def test_args_find_their_place(box: GuestBox, definition: str, args: dict[str, Any], value: Any) -> None:
    got = box.call(definition, args=args).value
    assert got == (value if isinstance(value, dict) else {"result": value})


@pytest.mark.parametrize(
    ("definition", "args", "parts"),
    [
        ("def main(): return 1", {"x": 1, "y": 2}, ["main() takes no arguments", "'x', 'y'", "define main(args)"]),
        ("def main(city, days=3): ...", {"town": 1}, ["main(city, days=…)", "missing 'city'", "unknown 'town'"]),
        ("def main(city, days): ...", {}, ["missing 'city', 'days'", "by name"]),
        ("def main(days=3): ...", {"dais": 1}, ["unknown 'dais'"]),
        ("def main(*, city): ...", {"town": 1}, ["missing 'city'", "unknown 'town'"]),
        (
            "def main(a, b): ...",
            {"x" * 10**5: 1} | {f"k{i}": 1 for i in range(50)},
            ["'a', 'b'", "unknown one of 100000 characters", ", …"],
        ),
    ],
)
def test_what_does_not_fit_is_listed(box: GuestBox, definition: str, args: dict[str, Any], parts: list[str]) -> None:
    failure = box.call(definition, args=args).failure
    assert failure.type == "TypeError"
    assert len(failure.message) < 1000
    for part in parts:
        assert part in failure.message


def test_a_failed_function_of_one_parameter_says_that_it_got_the_whole_object(box: GuestBox) -> None:
    code = "def main(text):\n    return text.upper()"
    failure = box.call(code, args={"text": "a"}).failure
    assert failure.type == "AttributeError"
    assert failure.message.endswith(
        "(main(text) got the whole args object, since it has one parameter: use text['text'])"
    )
    assert "whole" not in box.call(code, args={"other": "a"}).failure.message
    assert "whole" in box.call("def main(xs):\n    return {sum(xs)}", args={"xs": [1]}).failure.message


def test_a_skills_function_is_called_alike(box: GuestBox) -> None:
    box.mount_skill("a.b", {"code/main.py": "def weather(city, days=3):\n    return [city, days]\n"})
    call = {"skill": "a.b", "entrypoint": "weather"}
    assert box.call(**call, args={"city": "Bern"}).value == {"result": ["Bern", 3]}
    assert "missing 'city'" in box.call(**call, args={"x": 1}).failure.message


@pytest.mark.parametrize(
    "code",
    [
        "print(6 * 7)",
        "def helper(): return 42\nprint(helper())",
        "if __name__ == '__main__':\n    print(42)",
        "main = 3\nprint(42)",
        "print(42)\nimport sys\nsys.exit(0)",
        "print(42)\nraise SystemExit",
        "def go():\n    print(42)\nif __name__ == '__main__':\n    go()\n    raise SystemExit(0)",
        "",
    ],
)
def test_code_without_a_main_runs_as_a_script(box: GuestBox, code: str) -> None:
    ran = box.call(code, entrypoint=None)
    assert (ran.value, ran.logs) == ({}, "42\n" if code else "")
    assert Notes(script=True) in ran.frames


def test_a_script_fails_as_a_script(box: GuestBox) -> None:
    failure = box.call("print(1)\n1 / 0", entrypoint=None).failure
    assert failure.type == "ZeroDivisionError"
    assert "line 2" in failure.traceback
    assert box.call("import sys\nsys.exit('no input')", entrypoint=None).failure.message == "no input"
    assert box.call("import sys\nsys.exit(3)", entrypoint=None).failure.message == "exit status 3"


def test_a_main_is_called_and_its_guard_is_not(box: GuestBox) -> None:
    code = "def main():\n    print('once')\n    return {'a': 1}\nif __name__ == '__main__':\n    main()\n"
    ran = box.call(code, entrypoint=None)
    assert (ran.value, ran.logs) == ({"a": 1}, "once\n")
    assert Notes(script=True) not in ran.frames


def test_a_function_that_was_asked_for_is_not_replaced_by_a_script(box: GuestBox) -> None:
    failure = box.call("def helper(): ...", entrypoint="go").failure
    assert failure.type == "EntrypointNotFound"
    assert "it defines: helper" in failure.message
    assert "leave entrypoint out" in failure.message


@pytest.mark.parametrize("ending", ["sys.exit()", "sys.exit(0)", "sys.exit(False)", "raise SystemExit(None)"])
def test_a_function_may_end_the_program_in_order(box: GuestBox, ending: str) -> None:
    assert box.call(f"import sys\ndef main(args):\n    {ending}").value == {}


@pytest.mark.parametrize("fenced", ["```python\n{}\n```", "Here is the code:\n\n```py\n{}\n```\nIt works."])
def test_a_fence_is_named(box: GuestBox, fenced: str) -> None:
    failure = box.call(fenced.format("def main(args):\n    return 1")).failure
    assert failure.type == "SyntaxError"
    assert "Markdown fence: send the Python source without ```" in failure.message
    plain = box.call("def main(args):\n    return '''\n```\n''' +").failure
    assert plain.type == "SyntaxError"
    assert box.call("TEXT = '''\n```\n'''\ndef main(args): return 1").value == {"result": 1}
    assert "fence" not in box.call("def main(:").failure.message


def test_classes_and_functions_of_a_script_can_be_pickled_for_a_child(box: GuestBox) -> None:
    code = """
import multiprocessing
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(square, range(4))))
"""
    assert box.call(code, entrypoint=None).logs == "14\n"
