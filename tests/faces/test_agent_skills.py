"""Agent Skills of a project beside a skill of the protocol, mounted in real sandboxes: their scripts are imported and
run, with the packages that they ask for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.errors import ProtectionMissing
from tests.unit.engine.packages.wheels import make_wheel, wheel_name
from tests.unit.stores.skills.skilldirs import action, agent_skill, write

pytestmark = pytest.mark.ordinary

FILES = {
    "requirements.txt": "acme-colors>=1\n",
    "core/gif.py": "from core.easing import ease\ndef frames(n):\n    return [ease(i) for i in range(n)]\n",
    "core/easing.py": "def ease(i):\n    return i * i\n",
    "scripts/make.py": "#!/usr/bin/env python3\n"
    "import sys\nfrom pathlib import Path\nimport acme_colors\nfrom layout import WIDTH\n"
    "note = (Path(__file__).parent.parent / 'assets' / 'note.txt').read_text().strip()\n"
    "if __name__ == '__main__':\n    print(note, WIDTH, acme_colors.VERSION, *sys.argv[1:])\n",
    "scripts/layout.py": "WIDTH = 3\n",
    "scripts/frames.py": "from core.gif import frames\nprint(frames(3))\n",
    "scripts/run.sh": '#!/bin/sh\nset -e\npython3 "$(dirname "$0")/make.py" "$@"\npwd\n',
    "assets/note.txt": "a note\n",
}


@pytest.fixture(scope="module", params=["native", "landlock", "gvisor"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp(request.param)
    skill = write(agent_skill(home / "project/.claude/skills", "gif-maker"), FILES)
    for script in ("make.py", "run.sh"):
        (skill / "scripts" / script).chmod(0o755)
    action(home / "project/skills", "acme.text.count")
    wheels = home / "wheels"
    wheels.mkdir()
    (wheels / wheel_name("acme-colors")).write_bytes(make_wheel("acme-colors"))
    settings = load_settings(
        data_dir=home / "data",
        skills_dirs=[home / "project"],
        policy={"isolation": request.param},
        packages={"wheels": wheels, "offline": True},
    )
    with SyncRuntime(settings=settings) as runtime:
        try:
            runtime.run_code("def main(args): pass")
        except ProtectionMissing as missing:
            pytest.skip(str(missing))
        yield runtime


def returned(runtime: SyncRuntime, code: str, *skills: str) -> Any:
    ran = runtime.run_code(code, {}, mount_skills=skills)
    assert ran.ok, dict(ran)
    return ran.output


PROGRAMS = """
import os, subprocess, sys
SCRIPTS = os.environ["SKILLS_DIR"] + "/gif-maker/scripts/"
def said(*command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    return ran.stdout.splitlines() if ran.returncode == 0 else [ran.stderr[-500:]]
def main(args):
    return {
        "as a program": said(sys.executable, SCRIPTS + "make.py", "one"),
        "by its first line": said(SCRIPTS + "make.py", "two"),
        "from a shell": [line.replace(os.getcwd(), "CWD") for line in said(SCRIPTS + "run.sh", "three")],
        "from its root": said(sys.executable, "-m", "scripts.frames", cwd=os.environ["SKILL_DIR"]),
    }
"""


def test_scripts_run_as_programs(runtime: SyncRuntime) -> None:
    assert returned(runtime, PROGRAMS, "gif-maker") == {
        "as a program": ["a note 3 1.0 one"],
        "by its first line": ["a note 3 1.0 two"],
        "from a shell": ["a note 3 1.0 three", "CWD"],
        "from its root": ["[0, 1, 4]"],
    }


IMPORTS = """
import os, runpy
from skills.gif_maker.scripts import make
from skills.gif_maker.core.gif import frames
from core.easing import ease
from skills.acme.text.count import main as count
def main(args):
    again = runpy.run_path(os.environ["SKILLS_DIR"] + "/gif-maker/scripts/make.py")
    return {"note": make.note, "frames": frames(3), "ease": ease(3), "again": again["note"], "count": count({"n": 1})}
"""


def test_scripts_are_imported_beside_a_skill_of_the_protocol(runtime: SyncRuntime) -> None:
    assert returned(runtime, IMPORTS, "gif-maker", "acme.text.count") == {
        "note": "a note",
        "frames": [0, 1, 4],
        "ease": 9,
        "again": "a note",
        "count": {"n": 1},
    }


SHUT = """
import os
def main(args):
    root, refused = os.environ["SKILL_DIR"], []
    for path in (root + "/scripts/make.py", root + "/new.txt", root + "/scripts/__pycache__"):
        try:
            os.mkdir(path) if path.endswith("__") else open(path, "w")
        except OSError as error:
            refused.append(type(error).__name__)
    return {"refused": len(refused), "mode": os.stat(root + "/scripts/run.sh").st_mode & 0o777}
"""


def test_what_is_mounted_stays_as_it_is(runtime: SyncRuntime) -> None:
    assert returned(runtime, SHUT, "gif-maker") == {"refused": 3, "mode": 0o555}


def test_what_a_model_is_told(runtime: SyncRuntime) -> None:
    rows = {row["name"]: row for row in runtime.list_skills(detail="summary")["skills"]}
    assert (rows["gif-maker"]["format"], rows["acme.text.count"]["format"]) == ("agent-skills", "skills-protocol")
    told = runtime.describe_skill("gif-maker")["skill"]
    assert (told["directory"], told["import_name"]) == ("/skills/gif-maker", "skills.gif_maker")
    assert (told["dependencies"], told["files_total"]) == (["acme-colors>=1"], len(FILES) + 1)
    assert set(told["file_names"]) == {*FILES, "SKILL.md"}
    assert runtime.read_skill_file("gif-maker", "assets/note.txt")["content"] == "a note\n"


def test_each_level_says_where_its_skills_are(runtime: SyncRuntime) -> None:
    code = "import os\ndef main(args): return [os.environ.get(n, '') for n in ('SKILLYARD_ROOT', 'SKILLS_DIR')]"
    root, skills = returned(runtime, code, "gif-maker")["result"]
    assert skills == f"{root}/skills"
    assert bool(root) == (runtime.settings.policy.isolation == "landlock")


def test_what_cannot_be_served_is_listed_with_the_reason(tmp_path: Path) -> None:
    for home, text in ((".claude/skills", "One."), (".agents/skills", "Another.")):
        agent_skill(tmp_path / home, "pdf-tools", body=text)
    write(tmp_path / ".claude/skills/broken", {"SKILL.md": "---\nname: broken\n---\nIt does not say what it does.\n"})
    with SyncRuntime(tmp_path / "data", skills_dirs=[tmp_path]) as runtime:
        names = [row["name"] for row in runtime.list_skills()["skills"]]
        found = runtime.call("catalogue.problems", {})
        assert (names, found["total"]) == (["pdf-tools", "skills.protocol.guide"], 3)
        rules = {problem["rule"]: problem for problem in found["problems"]}
        assert rules.keys() == {"scan-project", "duplicate-version", "required"}
        assert rules["required"]["file"] == str(tmp_path / ".claude/skills/broken/SKILL.md")
        assert str(tmp_path / ".agents/skills/pdf-tools") in rules["duplicate-version"]["message"]
        assert all(problem["mend"] for problem in rules.values())
        assert len(runtime.call("catalogue.problems", {"limit": 1})["problems"]) == 1
        assert "Another." in runtime.describe_skill("pdf-tools")["skill"]["skill_md"]


def test_a_directory_may_become_a_project_and_end_as_one(tmp_path: Path) -> None:
    agent_skill(tmp_path / "project", "plain")
    with SyncRuntime(tmp_path / "data", skills_dirs=[tmp_path / "project"]) as runtime:
        assert served(runtime, "plain")
        agent_skill(tmp_path / "project/.agents/skills", "mail-merge")
        assert served(runtime, "mail-merge")
        agent_skill(tmp_path / "project/.claude/skills", "pdf-tools")
        assert served(runtime, "mail-merge", "pdf-tools")
        shutil.rmtree(tmp_path / "project/.agents")
        shutil.rmtree(tmp_path / "project/.claude")
        assert served(runtime, "plain")


def served(runtime: SyncRuntime, *names: str) -> bool:
    """Whether these and the guide are listed, within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if [row["name"] for row in runtime.list_skills()["skills"]] == sorted([*names, "skills.protocol.guide"]):
            return True
        time.sleep(0.05)
    return False
