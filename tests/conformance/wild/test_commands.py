"""Third-party scripts do their work as shell commands: a skill's own words typed as an agent types them."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.runtime import Runtime
from tests.conformance.wild.conftest import Open

pytestmark = pytest.mark.anyio
SERVED = (
    "echo hello > notes.txt; python3 scripts/with_server.py --server 'exec python3 -m http.server 8123' --port 8123 -- "
    "python3 -c 'import urllib.request as web; print(web.urlopen(\"http://localhost:8123/notes.txt\").read())'"
)
COMMANDS = [
    ("anthropics", "skill-creator", "python3 scripts/aggregate_benchmark.py --help", "usage: aggregate_benchmark.py"),
    ("anthropics", "skill-creator", "./scripts/aggregate_benchmark.py --help | head -1; test -w SKILL.md", "usage:"),
    ("anthropics", "webapp-testing", SERVED, "b'hello\\n'"),
    ("openai", "skill-creator", "python3 scripts/init_skill.py my-notes --path . && cat my-notes/SKILL.md", "my-notes"),
]


async def run(runtime: Runtime, skill: str, command: str, **more: Any) -> dict[str, Any]:
    return dict(await runtime.run_cmd(skill, command, **more))


@pytest.mark.parametrize(("checkout", "skill", "command", "said"), COMMANDS)
async def test_a_script_does_its_work(wild: Open, checkout: str, skill: str, command: str, said: str) -> None:
    async with wild(checkout) as runtime:
        ran = await run(runtime, skill, command)
        assert (ran["status"], ran["exit_code"]) == ("succeeded", 0), ran
        assert said in ran["stdout"], ran


async def test_a_made_skill_is_an_artifact(wild: Open) -> None:
    """The files that a script wrote come out, as a call without a session leaves nothing else."""
    async with wild("openai") as runtime:
        make = "python3 scripts/init_skill.py my-notes --path . > /dev/null"
        ran = await run(runtime, "skill-creator", make, outputs=[{"path": "my-notes/**", "save_as": "made/"}])
        assert "made/SKILL.md" in {made["filename"] for made in ran["created_artifacts"]}, ran


async def test_files_stay_in_a_session(wild: Open) -> None:
    async with wild("openai") as runtime:
        made = await run(runtime, "skill-creator", "python3 scripts/init_skill.py my-notes --path .", session_id="a")
        assert made["status"] == "succeeded", made
        found = await run(runtime, "skill-creator", "ls my-notes", session_id="a")
        assert "SKILL.md" in found["stdout"].split(), found
        await runtime.end_session("a")


@pytest.mark.parametrize("name", ["brand-guidelines", "internal-comms", "theme-factory"])
async def test_an_instruction_is_loaded_as_it_is(wild: Open, name: str) -> None:
    async with wild("anthropics") as runtime:
        loaded = await runtime.call("skills.load", {"skill_name": name})
        seen = await run(runtime, name, f"sha256sum < /skills/{name}/SKILL.md")
        assert seen["stdout"].split()[0] == loaded["sha256"]
