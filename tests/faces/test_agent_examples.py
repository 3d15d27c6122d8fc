"""The examples of agents work as they stand, with the unmodified SDKs, against a stand-in for the model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.server_process import ServerProcess
from tests.faces.model_standin import Call, Script, standing_in

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "agents"
SKILLS = ROOT / "src" / "skillyard" / "bundled" / "examples"
PYTHON = os.environ.get("SKILLYARD_TEST_AGENTS", "")
BOUND_S = 90
CODE = """
from skills.examples.text.keywords import main as keywords

def main(args):
    return {"words": keywords({"text": args["text"]})["words"]}
"""
GOOD = {
    "language": "python",
    "code": CODE,
    "args": {"text": "a sandbox a run"},
    "mount_skills": ["examples.text.keywords"],
}
MODELS = {"openai_tools": "m", "anthropic_tools": "m", "pydantic_ai_tools": "openai-chat:m"}

pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason="SKILLYARD_TEST_AGENTS names no Python with anthropic, openai and pydantic-ai; .ci/setup makes it",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", skills_dirs=[SKILLS]) as server:
        yield server


def answered(example: str, model: str, script: Script, server: ServerProcess) -> str:
    """Returns what an example prints while ``script`` speaks for its model."""
    with standing_in(script) as url:
        keys = {
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_API_KEY": "k",
            "ANTHROPIC_BASE_URL": url,
        }
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environ = {**kept, **keys, "MODEL": model, "SKILLYARD_DATA_DIR": str(server.data_dir)}
        environ["PYTHONPATH"] = str(ROOT / "src")
        done = subprocess.run(
            [PYTHON, str(EXAMPLES / f"{example}.py"), "How many words?"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
    assert script.faults == [], script.told
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def words(told: str) -> str:
    return f"{json.loads(told)['output']['words']} words"


@pytest.mark.parametrize("example", MODELS)
def test_a_model_calls_tools_mends_a_refused_call_and_answers(example: str, server: ServerProcess) -> None:
    refused: dict[str, Any] = {**GOOD, "mount_skills": ["examples.text.nothing"]}
    script = Script([Call("run_code", refused), Call("run_code", GOOD), words])
    assert answered(example, MODELS[example], script, server) == "4 words"
    assert "SkillNotFound" in script.told[1]
    assert {"run_code", "execute_skill", "list_skills", "read_blob"} <= script.tools[0]


@pytest.mark.parametrize("example", ["openai_tools", "anthropic_tools"])
def test_a_tool_that_is_not_there_is_told_to_the_model(example: str, server: ServerProcess) -> None:
    script = Script([Call("rm_rf", {}), lambda told: told])
    assert "there is no tool 'rm_rf'" in answered(example, "m", script, server)


def test_arguments_that_are_not_json_are_told_to_the_model(server: ServerProcess) -> None:
    script = Script([Call("run_code", '{"code": '), lambda told: json.loads(told)["error"]["type"]])
    assert answered("openai_tools", "m", script, server) == "InvalidParams"


def test_a_code_agent_keeps_names_between_its_programs(server: ServerProcess) -> None:
    script = Script(
        [
            lambda told: "I shall write code.",
            lambda told: "```python\ntotal = sum(range(10))\ntotal\n```",
            lambda told: "```python\nmissing\n```",
            lambda told: '```python\n{"answer": total * 2}\n```',
        ]
    )
    assert answered("code_agent", "m", script, server) == "90"
    assert "no block of code" in script.told[1]
    assert json.loads(script.told[2])["output"] == {"result": 45}
    assert json.loads(script.told[3])["error"]["type"] == "NameError"
