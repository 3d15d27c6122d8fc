"""Third-party scripts do their work when run_code mounts them, imported and as programs."""

from __future__ import annotations

import io
from typing import Any
from zipfile import ZipFile

import pytest

from skillyard.runtime import Runtime
from tests.conformance.wild.conftest import Open
from tests.unit.engine.packages import real_index

pytestmark = pytest.mark.anyio
A_MINUTE = {"timeout_ms": 60_000}

needs_index = pytest.mark.skipif(bool(real_index.why_not()), reason=real_index.why_not() or "-")


async def run(runtime: Runtime, code: str, *skills: str, **more: Any) -> dict[str, Any]:
    ran = await runtime.run_code(code, {}, mount_skills=skills, **{"limits": A_MINUTE, **more})
    assert ran.status == "completed", (ran.error, ran.logs_preview)
    assert ran.output is not None
    return dict(ran.output)


async def fetched(runtime: Runtime, blob_id: str) -> bytes:
    sink = io.BytesIO()
    await runtime.get_blob(blob_id, sink)
    return sink.getvalue()


async def test_the_scripts_of_skill_creator_are_imported(wild: Open) -> None:
    code = """
from skills.skill_creator.scripts import aggregate_benchmark, generate_report, run_eval, run_loop
from skills.skill_creator.scripts.utils import parse_skill_md
from scripts.utils import parse_skill_md as by_its_root
from pathlib import Path
def main(args):
    name, description, content = by_its_root(Path("/skills/skill-creator"))
    return {"name": name, "same": parse_skill_md(Path("/skills/skill-creator"))[0] == name}
"""
    async with wild("anthropics") as runtime:
        assert await run(runtime, code, "skill-creator") == {"name": "skill-creator", "same": True}


async def test_an_executable_script_runs_by_its_path(wild: Open) -> None:
    code = """
import os, subprocess
def main(args):
    script = os.environ["SKILL_DIR"] + "/scripts/aggregate_benchmark.py"
    ran = subprocess.run([script, "--help"], capture_output=True, text=True)
    return {"status": ran.returncode, "usage": ran.stdout.splitlines()[0][:6]}
"""
    async with wild("anthropics") as runtime:
        assert await run(runtime, code, "skill-creator") == {"status": 0, "usage": "usage:"}


async def test_with_server_starts_a_server_for_a_program(wild: Open) -> None:
    code = """
import subprocess, sys
def main(args):
    asks = "import urllib.request as web; print('got', web.urlopen('http://localhost:8123/notes.txt').read())"
    with open("notes.txt", "w") as file:
        file.write("hello")
    command = [sys.executable, "/skills/webapp-testing/scripts/with_server.py", "--server"]
    command += ["exec python3 -m http.server 8123", "--port", "8123", "--", sys.executable, "-c", asks]
    ran = subprocess.run(command, capture_output=True, text=True)
    return {"status": ran.returncode, "got": "got b'hello'" in ran.stdout, "errors": ran.stderr[-300:]}
"""
    async with wild("anthropics") as runtime:
        assert await run(runtime, code, "webapp-testing") == {"status": 0, "got": True, "errors": ""}


@needs_index
async def test_skill_creator_checks_and_packs_a_skill(wild: Open) -> None:
    code = """
import os, subprocess, sys
from runtime import blobs
def main(args):
    root = os.environ["SKILL_DIR"]
    check = subprocess.run([sys.executable, root + "/scripts/quick_validate.py", root], capture_output=True, text=True)
    command = [sys.executable, "-m", "scripts.package_skill", root, "/workspace"]
    packed = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert packed.returncode == 0, packed.stderr
    return {"valid": check.stdout.strip(), "blob": blobs.write_file("skill-creator.skill", "application/zip")}
"""
    async with wild("anthropics", packages=real_index.packages(run_code=("pyyaml",))) as runtime:
        output = await run(runtime, code, "skill-creator", packages=["pyyaml"])
        assert output["valid"] == "Skill is valid!"
        with ZipFile(io.BytesIO(await fetched(runtime, output["blob"]))) as archive:
            assert "skill-creator/SKILL.md" in archive.namelist()


@needs_index
async def test_the_other_skill_creator_makes_a_skill_that_passes_its_own_check(wild: Open) -> None:
    code = """
import os, subprocess, sys
def main(args):
    scripts = os.environ["SKILL_DIR"] + "/scripts"
    made = subprocess.run([sys.executable, scripts + "/init_skill.py", "my-notes", "--path", "."], capture_output=True)
    check = subprocess.run([sys.executable, scripts + "/quick_validate.py", "my-notes"], capture_output=True, text=True)
    return {"made": made.returncode, "there": os.path.isfile("my-notes/SKILL.md"), "said": check.stdout[-200:]}
"""
    async with wild("openai", packages=real_index.packages(run_code=("pyyaml",))) as runtime:
        output = await run(runtime, code, "skill-creator", packages=["pyyaml"])
        assert (output["made"], output["there"]) == (0, True), output


GIF = """
import math
from PIL import ImageDraw
from runtime import blobs
from skills.slack_gif_creator.core.easing import interpolate
from skills.slack_gif_creator.core.frame_composer import create_blank_frame, draw_circle
from skills.slack_gif_creator.core.gif_builder import GIFBuilder
from skills.slack_gif_creator.core.validators import validate_gif
def main(args):
    builder = GIFBuilder(width=128, height=128, fps=10)
    for number in range(12):
        frame = create_blank_frame(128, 128, (240, 248, 255))
        y = interpolate(20, 108, number / 11, "bounce_out")
        draw_circle(frame, (64, int(y)), 14, fill_color=(255, 80, 80))
        builder.add_frame(frame)
    builder.save("ball.gif", num_colors=48, optimize_for_emoji=True)
    fits, facts = validate_gif("ball.gif", is_emoji=True, verbose=False)
    return {"fits": fits, "blob": blobs.write_file("ball.gif", "image/gif")}
"""


@needs_index
@pytest.mark.timeout(600)
async def test_slack_gif_creator_makes_a_gif_with_the_packages_that_it_asks_for(wild: Open) -> None:
    async with wild("anthropics", packages=real_index.packages()) as runtime:
        described = (await runtime.describe_skill("slack-gif-creator"))["skill"]
        assert "pillow>=10.0.0" in described["dependencies"]
        for _ in range(2):
            output = await run(runtime, GIF, "slack-gif-creator")
            assert (await fetched(runtime, output["blob"])).startswith(b"GIF89a")
            assert output["fits"] is True
