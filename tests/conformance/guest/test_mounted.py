"""Scripts of mounted Agent Skills, in the ways that their instructions tell to use them."""

from __future__ import annotations

import pytest

from tests.conformance.guest.conftest import GuestBox

GIF = {
    "SKILL.md": "",
    "core/builder.py": "from core.easing import ease\nclass Builder:\n    speed = ease(2)\n",
    "core/easing.py": "def ease(n): return n * n\n",
    "scripts/make.py": "import sys\nfrom layout import width\nfrom core.easing import ease\n"
    "if __name__ == '__main__':\n    print('made', width, ease(3), *sys.argv[1:])\n",
    "scripts/layout.py": "width = 3\n",
    "assets/note.txt": "read me",
}


@pytest.fixture
def gif(box: GuestBox) -> GuestBox:
    box.mount_skill("gif-maker", GIF, entry=None)
    return box


@pytest.mark.parametrize(
    ("statement", "expression", "value"),
    [
        ("from core.builder import Builder", "Builder.speed", 4),
        ("import core.easing", "core.easing.ease(3)", 9),
        ("from scripts.layout import width", "width", 3),
        ("import layout", "layout.width", 3),
        ("import importlib", "importlib.import_module('core.builder').Builder.speed", 4),
        ("from skills.gif_maker.scripts import make", "make.ease(make.width)", 9),
        ("from skills.gif_maker.core.builder import Builder", "Builder.speed", 4),
    ],
)
def test_imports_as_its_instructions_write_them(gif: GuestBox, statement: str, expression: str, value: object) -> None:
    assert gif.call(f"{statement}\ndef main(args): return {expression}").value == {"result": value}


@pytest.mark.parametrize(
    "statement",
    [
        "runpy.run_path(os.environ['SKILL_DIR'] + '/scripts/make.py', run_name='__main__')",
        "runpy.run_module('skills.gif_maker.scripts.make', run_name='__main__')",
        "runpy.run_module('scripts.make', run_name='__main__')",
    ],
)
def test_scripts_run_in_this_interpreter(gif: GuestBox, statement: str) -> None:
    code = f"import os, runpy, sys\ndef main(args):\n    sys.argv = ['make', 'it']\n    {statement}\n"
    ran = gif.call(code)
    assert ran.value == {}
    assert ran.logs == "made 3 9 it\n"


def test_a_skill_is_the_last_place_to_look(box: GuestBox) -> None:
    box.mount_skill("one", {"SKILL.md": "", "json.py": "mine = 1\n", "scripts/mine.py": "x = 1\n"}, entry=None)
    (box.workspace / "mine.py").write_text("x = 2\n")
    code = "import json, mine\ndef main(args): return [json.dumps(1), mine.x]\n"
    assert box.call(code).value == {"result": ["1", 2]}


def test_what_several_skills_have_must_be_told_apart(box: GuestBox) -> None:
    for name in ("one", "two"):
        box.mount_skill(name, {"SKILL.md": "", "scripts/helper.py": f"name = {name!r}\n"}, entry=None)
    code = """
from skills.two.scripts.helper import name
def main(args):
    try:
        import helper
    except ModuleNotFoundError as error:
        return [name, str(error)]
"""
    message = "several mounted skills have a module named 'helper'; import one of skills.one.helper, skills.two.helper"
    assert box.call(code).value == {"result": ["two", message]}


def test_modules_of_an_action_skill_stay_its_own(box: GuestBox) -> None:
    box.mount_skill("a.b", {"code/main.py": "", "code/utils.py": ""})
    assert box.call("import utils").failure.message == "No module named 'utils'"


def test_variables_say_where_skills_are(box: GuestBox) -> None:
    code = "import os\ndef main(args): return [os.environ.get('SKILLS_DIR'), os.environ.get('SKILL_DIR')]\n"
    skills = str(box.root / "skills")
    assert box.call(code).value == {"result": [None, None]}
    box.mount_skill("gif-maker", GIF, entry=None)
    assert box.call(code).value == {"result": [skills, f"{skills}/gif-maker"]}
    box.mount_skill("a.b", {"code/main.py": code})
    assert box.call(code).value == {"result": [skills, None]}
    assert box.call(None, skill="a.b").value == {"result": [skills, f"{skills}/a.b"]}


def test_a_secret_may_have_the_name_of_such_a_variable(gif: GuestBox) -> None:
    code = "import os\ndef main(args): return os.environ['SKILL_DIR']\n"
    assert gif.call(code, env={"SKILL_DIR": "a secret"}).value == {"result": "a secret"}
