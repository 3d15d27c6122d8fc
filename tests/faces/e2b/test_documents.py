"""Programs with the calls that the documents of E2B's SDKs show, which find this server by three variables alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import e2b
import pytest

from tests.faces.e2b.conftest import Yard
from tests.faces.e2b.test_javascript import ran

START = """
from e2b_code_interpreter import Sandbox

with Sandbox.create() as box:
    box.run_code("count = 1")
    print(box.run_code("count += 1; count").text)
    print(box.run_code("print('seen')").logs.stdout)
    print("home" in [each.name for each in box.files.list("/")])
    told = []
    ran = box.run_code(
        "import sys; print('out'); print('err', file=sys.stderr); display(1); 1 / 0",
        on_stdout=lambda m: told.append(m.line), on_stderr=lambda m: told.append(m.line),
        on_result=lambda r: told.append(r.text), on_error=lambda e: told.append(e.name),
    )
    print(sorted(one.strip() for one in told if one.strip()), ran.error.name)
    box.files.write("/home/user/sales.csv", "day,sold\\n1,2\\n2,5\\n")
    rows = "csv.DictReader(open('/home/user/sales.csv'))"
    print(box.run_code(f"import csv; sum(int(row['sold']) for row in {rows})").text)
"""
ASYNC = """
import asyncio
from e2b import AsyncSandbox

async def main():
    box = await AsyncSandbox.create(envs={"NAME": "all"}, metadata={"user": "7"}, timeout=60)
    lines = []
    done = await box.commands.run("echo for $NAME; echo of $ONE", on_stdout=lines.append, envs={"ONE": "one"})
    print("".join(lines).split(), done.exit_code)
    same = await AsyncSandbox.connect(box.sandbox_id)
    await same.set_timeout(30)
    print((await same.get_info()).metadata)
    server = await same.commands.run("python3 -m http.server 8000", background=True)
    print(same.get_host(8000).split("-")[0])
    await server.kill()
    print(await box.kill())

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (START, "2\n['seen\\n']\nTrue\n['1', 'ZeroDivisionError', 'err', 'out'] ZeroDivisionError\n7\n"),
        (ASYNC, "['for', 'all', 'of', 'one'] 0\n{'user': '7'}\n8000\nTrue\n"),
    ],
    ids=["start", "async"],
)
def test_three_variables_are_enough(yard: Yard, program: str, said: str) -> None:
    pytest.importorskip("e2b_code_interpreter", reason="e2b-code-interpreter is not installed")
    env = {
        "PATH": os.environ["PATH"],
        "E2B_API_URL": yard.server.url,
        "E2B_SANDBOX_URL": yard.server.url,
        "E2B_API_KEY": yard.server.token,
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, said), done.stderr[-2000:]


def test_a_client_has_its_configuration(yard: Yard) -> None:
    client = e2b.E2B(**{name: value for name, value in yard.opts.items() if name != "retries"})
    made = client.Sandbox.create(timeout=60)
    try:
        assert made.commands.run("echo bound").stdout == "bound\n"
        assert made.sandbox_id in [each.sandbox_id for each in client.Sandbox.list().next_items()]
        with pytest.raises(e2b.AuthenticationException):
            client.Sandbox.create(api_key="another")
    finally:
        made.kill()


def test_programs_in_javascript_work(yard: Yard) -> None:
    assert json.loads(ran(yard, "documents.mjs")) == {
        "hello": "Hello from a sandbox\n",
        "counted": "2",
        "told": ["1", "ZeroDivisionError", "err", "out"],
        "sum": "7",
        "user": "7",
        "bound": "bound\n",
        "found": True,
        "stranger": "AuthenticationError",
    }
