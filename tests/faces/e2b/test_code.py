"""Code contexts by the unmodified code interpreter SDK of E2B."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from e2b.exceptions import SandboxException

from tests.faces.e2b.conftest import Yard

Interpreter = pytest.importorskip("e2b_code_interpreter", reason="e2b-code-interpreter is not installed").Sandbox


@pytest.fixture(scope="module")
def cells(yard: Yard) -> Iterator[Any]:
    made = Interpreter.create(**{"timeout": 300, **yard.opts}, envs={"GREETING": "hello"})
    yield made
    made.kill()


def test_names_stay_and_the_last_value_is_the_result(cells: Any) -> None:
    first = cells.run_code("x = 20\nx + 1")
    assert (first.text, first.error, first.results[0].is_main_result) == ("21", None, True)
    second = cells.run_code("import os; x += 2; print(x, os.environ['GREETING']); os.getcwd()")
    assert (second.logs.stdout, second.text) == (["22 hello\n"], "'/workspace'")
    assert second.execution_count == first.execution_count + 1
    assert cells.run_code("None").results == []


def test_streams_come_apart_and_as_they_are_written(cells: Any) -> None:
    told: list[tuple[str, bool]] = []
    ran = cells.run_code(
        "import os, sys, subprocess\nprint('out', flush=True); print('err', file=sys.stderr)\n"
        "subprocess.run(['sh', '-c', 'echo child; echo bad >&2'])\nos.write(2, b'raw'); None",
        on_stdout=lambda m: told.append((m.line, m.error)),
        on_stderr=lambda m: told.append((m.line, m.error)),
    )
    assert "".join(ran.logs.stdout) == "out\nchild\n"
    assert "".join(ran.logs.stderr) == "err\nbad\nraw"
    assert "".join(line for line, error in told if error) == "err\nbad\nraw"


def test_an_error_has_name_value_and_traceback(cells: Any) -> None:
    ran = cells.run_code("def f():\n    return 1 / 0\nf()")
    assert (ran.error.name, ran.error.value) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in ran.error.traceback
    assert cells.run_code("def").error.name == "SyntaxError"
    assert cells.run_code("import sys; sys.exit(3)").error is not None
    assert cells.run_code("1").text == "1"


def test_forms_of_values_are_passed_on(cells: Any) -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
    ran = cells.run_code(f"""
import base64
class Rich:
    def __repr__(self): return "plain"
    def _repr_html_(self): return "<b>html</b>"
    def _repr_markdown_(self): return "**md**"
    def _repr_svg_(self): return "<svg xmlns='http://www.w3.org/2000/svg'/>"
    def _repr_png_(self): return base64.b64decode({png!r})
    def _repr_jpeg_(self): return b"not a picture"
    def _repr_pdf_(self): return b"%PDF-1.4"
    def _repr_latex_(self): return "$x$"
    def _repr_json_(self): return {{"a": [1, 2]}}
    def _repr_javascript_(self): return "alert(1)"
    def _repr_mimebundle_(self, **_): return {{"application/x.own": "own"}}
Rich()""")
    result = ran.results[0]
    assert (result.text, result.html, result.markdown, result.latex) == ("plain", "<b>html</b>", "**md**", "$x$")
    assert (result.json, result.javascript, result.png) == ({"a": [1, 2]}, "alert(1)", png)
    assert result.svg.startswith("<svg")
    assert base64.b64decode(result.pdf) == b"%PDF-1.4"
    assert result.jpeg is None, "what says that it is a picture is one"
    assert result.extra == {"application/x.own": "own"}


def test_display_shows_beside_the_result(cells: Any) -> None:
    seen: list[Any] = []
    ran = cells.run_code(
        "from IPython.display import HTML, Markdown\ndisplay(HTML('<i>one</i>'), Markdown('_two_'))\n"
        "display({'text/plain': 'three'}, raw=True)\n4",
        on_result=seen.append,
    )
    assert ran.results[0].html == "<i>one</i>"
    assert [r.is_main_result for r in ran.results] == [False, False, False, True]
    assert (ran.results[1].markdown, ran.results[2].text, ran.text) == ("_two_", "three", "4")
    assert len(seen) == 4


def test_contexts_are_apart(cells: Any) -> None:
    one, other = cells.create_code_context(), cells.create_code_context(cwd="/tmp", language="python")
    assert (one.language, one.cwd, other.cwd) == ("python", "/home/user", "/tmp")
    assert {one.id, other.id} <= {each.id for each in cells.list_code_contexts()}
    cells.run_code("name = 'one'", context=one)
    assert cells.run_code("name", context=other).error.name == "NameError"
    assert cells.run_code("import os; os.getcwd()", context=other).text == "'/tmp'"
    assert cells.run_code("name", context=one).text == "'one'"
    cells.restart_code_context(one)
    again = cells.run_code("name", context=one)
    assert (again.error.name, again.execution_count) == ("NameError", 1)
    cells.remove_code_context(one)
    with pytest.raises(Exception, match="not found"):
        cells.run_code("1", context=one)
    with pytest.raises(SandboxException, match="not supported"):
        cells.create_code_context(language="r")
    with pytest.raises(SandboxException, match="not supported"):
        cells.run_code("1", language="javascript")


def test_variables_are_those_of_one_cell(cells: Any) -> None:
    assert cells.run_code("import os; os.environ['OWN']", envs={"OWN": "x"}).text == "'x'"
    assert cells.run_code("os.environ.get('OWN', 'gone')").text == "'gone'"


def test_a_cell_that_nobody_waits_for_is_interrupted_and_names_stay(cells: Any) -> None:
    cells.run_code("kept = 5")
    with pytest.raises(Exception, match="timed out"):
        cells.run_code("import time\nwhile True: time.sleep(0.1)", timeout=2)
    assert cells.run_code("kept").text == "5"


def test_an_interpreter_that_dies_is_told_and_begins_anew(cells: Any) -> None:
    context = cells.create_code_context()
    ran = cells.run_code("import os; os.kill(os.getpid(), 9)", context=context)
    assert ran.error.name == "InterpreterLost"
    assert cells.run_code("2", context=context).text == "2"


def test_huge_results_are_bounded(cells: Any) -> None:
    large = cells.run_code("'x' * (64 << 20)")
    assert large.error is None
    assert len(large.text) < 2 << 20
    many = cells.run_code("for n in range(5000): display(n)")
    assert (many.error.name, len(many.results)) == ("RuntimeError", 1000)
    huge = cells.run_code("display({'text/html': 'x' * (40 << 20)}, raw=True)")
    assert huge.error is not None
    assert cells.run_code("3").text == "3"


def test_others_get_nowhere(yard: Yard, cells: Any) -> None:
    for headers in ({}, {"X-Access-Token": "x"}, {"E2B-Traffic-Access-Token": "x"}):
        given = {"E2b-Sandbox-Id": cells.sandbox_id, "E2b-Sandbox-Port": "49999", **headers}
        for method, path in (("POST", "/execute"), ("GET", "/contexts"), ("POST", "/contexts")):
            assert yard.ask(method, path, given, json={"code": "1"}).status_code == 401
    ports = {"E2b-Sandbox-Id": cells.sandbox_id, "E2b-Sandbox-Port": "49999"}
    ports["E2B-Traffic-Access-Token"] = cells.traffic_access_token
    assert yard.ask("GET", "/contexts", ports).status_code == 200
    assert yard.ask("POST", "/execute", ports, json={"code": "1"}).status_code == 401
