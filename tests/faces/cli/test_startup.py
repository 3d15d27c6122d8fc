"""Client commands and servers start light: they import nothing that they may not need.

The benchmark measures how long they take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.client.yardserver import TOKEN, YardServer

HEAVY = {
    "pydantic",
    "starlette",
    "uvicorn",
    "cryptography",
    "httpx2",
    "asyncio",
    "anyio",
    "jsonschema_rs",
    "yaml",
    "rich",
    "structlog",
    "opentelemetry",
    "sqlite3",
    "ssl",
    "skillyard.engine",
    "skillyard.runtime",
    "skillyard.stores",
    "skillyard.ports",
    "skillyard.sandbox.native",
    "skillyard.config",
}

_LIST = """
import sys
from skillyard.faces.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="skillyard")
except SystemExit as end:
    assert not end.code, end.code
print(",".join(sorted(sys.modules)), file=sys.stderr)
"""

COMMANDS = [
    ("version",),
    ("runs", "list"),
    ("run", "a.b", "--args", "{}"),
    ("blob", "put", __file__, "--kind", "text/x-python"),
    ("--help",),
]


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of bytecode, so that only the first command compiles the package."""
    return tmp_path_factory.mktemp("pyc")


@pytest.fixture
def environ(yard: YardServer, tmp_path: Path, bytecode: Path) -> dict[str, str]:
    yard.methods["runs.list"] = lambda params: {"runs": [], "next_cursor": None}
    yard.methods["execute_skill"] = lambda params: {"status": "completed", "run_id": "run_1", "summary": ""}
    named = {"SKILLYARD_URL": yard.url, "SKILLYARD_TOKEN": TOKEN, "SKILLYARD_DATA_DIR": str(tmp_path)}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **named, "PYTHONPYCACHEPREFIX": str(bytecode)}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_client_commands_import_nothing_heavy(command: tuple[str, ...], environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIST, *command], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split(","))
    assert {name for name in loaded if name in HEAVY} == set()


LATER = {
    "cryptography",  # when a secret is read
    "httpx2",
    "jsonschema_rs",  # in the jailed validator
    "mcp",  # when the first client comes
    "mcp_types",
    "opentelemetry",  # when the environment names a collector
    "rich",
    "structlog",  # for a log that a person reads
    "skillyard.verify",
    "skillyard.bench",
    "skillyard.testing",
    "skillyard.domain.review.bundle",  # when a skill is reviewed
    "skillyard.domain.diff",
    "yaml",  # when a skill or a profile is read
}
MODULES = 725
"""Each module costs every start of a server about a millisecond."""


def test_a_server_imports_what_it_serves_with_and_no_more() -> None:
    loaded = _said_after_imports("print(*sys.modules)")
    assert LATER.intersection(loaded) == set()
    assert len(loaded) <= MODULES


def test_a_server_compiles_no_methods_of_dataclasses_that_it_may_not_make() -> None:
    """The standard decorator does, which took a third of a start: see :mod:`skillyard.values`."""
    ours = "name.startswith('skillyard.') and vars(module).get('dataclass') is dataclasses.dataclass"
    code = f"import dataclasses; print(*[name for name, module in sys.modules.items() if {ours}])"
    assert _said_after_imports(code) == []


def _said_after_imports(code: str) -> list[str]:
    whole = f"import sys, skillyard.faces.cli.main, skillyard.faces.serve\n{code}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()
