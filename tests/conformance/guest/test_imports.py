"""``from skills.a.b.c import anything`` (skills-protocol §10)."""

from __future__ import annotations

import pytest

from tests.conformance.guest.conftest import GuestBox

SYNC = "salesforce.leads.sync"


@pytest.fixture
def synced(box: GuestBox) -> GuestBox:
    """A skill with a sibling that every kind of import reaches."""
    box.mount_skill(
        SYNC,
        {
            "code/main.py": """
from . import utils
import utils as plain
from utils import double
LIMIT = 10
def sync_leads(n): return double(n)
def main(args): return {"doubled": double(args["n"]), "same": plain is utils}
""",
            "code/utils.py": "def double(n): return 2 * n\n",
            "code/sub/__init__.py": "import utils\n",
            "code/sub/deep.py": "from .. import utils\nfrom utils import double as d\nanswer = d(21)\n",
            "code/portion/leaf.py": "value = 'namespace'\n",
        },
    )
    return box


def test_the_skill_itself_is_called(synced: GuestBox) -> None:
    assert synced.call(None, skill=SYNC, args={"n": 4}).value == {"doubled": 8, "same": True}


@pytest.mark.parametrize(
    ("statement", "expression", "value"),
    [
        (f"from skills.{SYNC} import main", "main({'n': 3})['doubled']", 6),
        (f"from skills.{SYNC} import sync_leads, LIMIT", "sync_leads(LIMIT)", 20),
        (f"import skills.{SYNC} as s", "s.sync_leads(1)", 2),
        (f"import skills.{SYNC}", f"skills.{SYNC}.LIMIT", 10),
        (f"from skills.{SYNC}.utils import double", "double(5)", 10),
        (f"from skills.{SYNC} import utils", "utils.double(5)", 10),
        (f"import skills.{SYNC}.utils", f"skills.{SYNC}.utils.double(5)", 10),
        (f"from skills.{SYNC}.sub.deep import answer", "answer", 42),
        (f"from skills.{SYNC}.portion.leaf import value", "value", "namespace"),
        (f"from skills.{SYNC}.main import LIMIT", "LIMIT", 10),
        ("from skills.salesforce.leads import sync", "sync.LIMIT", 10),
        (f"from skills.{SYNC} import *", "LIMIT", 10),
        ("import importlib", f"importlib.import_module('skills.{SYNC}').LIMIT", 10),
        (f"import skills.{SYNC} as s", f"s.__file__.endswith('skills/{SYNC}/code/main.py')", True),
        (f"import skills.{SYNC} as s", "(s.__name__, s.__package__)", [f"skills.{SYNC}"] * 2),
    ],
)
def test_every_form_of_import(synced: GuestBox, statement: str, expression: str, value: object) -> None:
    ran = synced.call(f"{statement}\ndef run(args): return {expression}", entrypoint="run")
    assert ran.value == {"result": value}


def test_the_entrypoints_module_exists_once(synced: GuestBox) -> None:
    code = f"""
import sys
import skills.{SYNC} as leaf
from skills.{SYNC} import main as function
import skills.{SYNC}.main
def main(args):
    modules = [m for n, m in sys.modules.items() if getattr(m, "LIMIT", 0) == 10]
    return len(set(map(id, modules))), leaf.main is function
"""
    assert synced.call(code).value == {"result": [1, True]}


def test_two_skills_have_each_their_own_utils(box: GuestBox) -> None:
    for name in ("one", "two"):
        source = "import utils\nfrom utils import name\ndef main(args=None): return [utils.name, name]\n"
        box.mount_skill(f"x.{name}", {"code/main.py": source, "code/utils.py": f"name = {name!r}\n"})
    code = """
from skills.x.one import main as one
from skills.x.two import main as two
def main(args):
    try:
        import utils
    except ModuleNotFoundError:
        return one() + two()
"""
    assert box.call(code).value == {"result": ["one", "one", "two", "two"]}


def test_imports_inside_functions_and_by_name_find_the_sibling_too(box: GuestBox) -> None:
    source = """
def main(args):
    import utils
    namespace = {}
    exec("import utils as again", namespace)
    return [utils.x, __import__("utils") is utils, namespace["again"] is utils]
"""
    box.mount_skill("a.b", {"code/main.py": source, "code/utils.py": "x = 1"})
    assert box.call(None, skill="a.b").value == {"result": [1, True, True]}


def test_a_sibling_may_have_the_name_of_a_library(box: GuestBox) -> None:
    source = "import json, csv\ndef main(args): return [json.mine, csv.__name__]\n"
    box.mount_skill("a.b", {"code/main.py": source, "code/json.py": "mine = True", "code/csv/notes.txt": ""})
    code = "from skills.a.b import main as theirs\nimport json\ndef main(args): return theirs({}) + [json.dumps(1)]"
    assert box.call(code).value == {"result": [True, "csv", "1"]}


def test_runtime_and_skills_are_never_a_sibling(box: GuestBox) -> None:
    source = "import runtime, skills\ndef main(args): return hasattr(runtime, 'blobs')\n"
    box.mount_skill("a.b", {"code/main.py": source, "code/runtime.py": "", "code/skills.py": ""})
    assert box.call(None, skill="a.b").value == {"result": True}


def test_siblings_may_import_each_other_and_the_entrypoint(box: GuestBox) -> None:
    files = {
        "code/main.py": "CONST = 7\nimport left\ndef main(args): return [left.right.CONST, left.main.CONST]\n",
        "code/left.py": "import right\nimport main\n",
        "code/right.py": "import left\nfrom main import CONST\n",
    }
    box.mount_skill("a.b", files)
    assert box.call(None, skill="a.b").value == {"result": [7, 7]}


def test_skills_within_skills(box: GuestBox) -> None:
    outer = "def weekly(): return 'function'\nname = 'outer'\ndef main(args): return 1\n"
    box.mount_skill("report", {"code/main.py": outer})
    box.mount_skill("report.weekly", {"code/main.py": "name = 'inner'\nfrom skills.report import name as parent\n"})
    code = """
from skills.report.weekly import name, parent
from skills.report import name as above, weekly
def main(args): return [name, parent, above, weekly()]
"""
    assert box.call(code).value == {"result": ["inner", "outer", "outer", "function"]}


def test_a_skill_wins_over_a_file_of_the_same_name(box: GuestBox) -> None:
    box.mount_skill("a.b", {"code/main.py": "name = 'outer'\n", "code/utils.py": "name = 'file'\n"})
    for last in ("main", "utils"):
        box.mount_skill(f"a.b.{last}", {"code/main.py": f"name = {last!r}\n"})
    code = """
import skills.a.b
from skills.a.b.main import name as main_name
from skills.a.b.utils import name as utils_name
def main(args): return [skills.a.b.name, main_name, utils_name]
"""
    assert box.call(code).value == {"result": ["outer", "main", "utils"]}


def test_a_skill_may_import_another_that_is_mounted(box: GuestBox) -> None:
    box.mount_skill("a.one", {"code/main.py": "from skills.b.two import f\ndef main(args): return f()\n"})
    box.mount_skill("b.two", {"code/main.py": "def f(): return 'two'\n"})
    assert box.call(None, skill="a.one").value == {"result": "two"}


def test_hyphens_become_underscores(box: GuestBox) -> None:
    box.mount_skill("pdf-tools", {"SKILL.md": "", "scripts/fill_form.py": "import layout\nx = layout.y\n"}, entry=None)
    (box.root / "skills/pdf-tools/scripts/layout.py").write_text("y = 3")
    code = """
import skills.pdf_tools
from skills.pdf_tools.fill_form import x
from skills.pdf_tools import layout
def main(args): return [x, layout.y]
"""
    assert box.call(code).value == {"result": [3, 3]}


def test_packages_below_the_root_of_a_text_skill(box: GuestBox) -> None:
    files = {"core/gif.py": "from core.easing import ease\nx = ease\n", "core/easing.py": "ease = 1\n"}
    box.mount_skill("gif-maker", files, entry=None)
    code = "from skills.gif_maker.core.gif import x\ndef main(args): return x"
    assert box.call(code).value == {"result": 1}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import skills.a.b", "skill 'a.b' is not mounted in this run; name it in mount_skills (mounted: x.y)"),
        ("from skills.a.b.c import f", "skill 'a.b.c' is not mounted"),
        ("from skills.a import f", "skill 'a' is not mounted"),
        ("from skills.x import z", "skill 'x.z' is not mounted"),
        ("from skills import other", "skill 'other' is not mounted"),
        ("from skills.x.y import nothing", "cannot import name 'nothing' from 'skills.x.y'"),
        ("import importlib; importlib.import_module('skills.q.r')", "skill 'q.r' is not mounted"),
    ],
)
def test_what_is_not_mounted_is_named(box: GuestBox, statement: str, message: str) -> None:
    box.mount_skill("x.y", {"code/main.py": ""})
    failure = box.call(f"def main(args): {statement}").failure
    assert failure.type == "ImportError"
    assert message in failure.message


def test_without_any_skill_the_error_says_so(box: GuestBox) -> None:
    failure = box.call("import skills.a.b").failure
    assert failure.message == "skill 'a.b' is not mounted in this run, and no other is; name it in mount_skills"


def test_a_skill_that_fails_while_it_is_imported_leaves_nothing(box: GuestBox) -> None:
    box.mount_skill("a.b", {"code/main.py": "raise ValueError('broken skill')"})
    code = """
import sys
def main(args):
    for _ in range(2):
        try:
            import skills.a.b
        except ValueError:
            pass
    return sorted(n for n in sys.modules if n.startswith("skills"))
"""
    assert box.call(code).value == {"result": ["skills", "skills.a"]}


def test_functions_of_a_skill_cross_to_forked_workers(box: GuestBox) -> None:
    source = """
import multiprocessing
from utils import square
def main(args):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(square, range(3))
"""
    box.mount_skill("a.b", {"code/main.py": source, "code/utils.py": "def square(n): return n * n\n"})
    assert box.call(None, skill="a.b").value == {"result": [0, 1, 4]}


def test_resources_and_sources_are_found(box: GuestBox) -> None:
    source = """
import importlib.resources, inspect, pathlib
def main(args):
    here = pathlib.Path(__file__).parent
    text = importlib.resources.files(__name__).joinpath("data.txt").read_text()
    return [text, (here.parent / "resources" / "more.txt").read_text(), inspect.getsource(main)[:9]]
"""
    box.mount_skill("a.b", {"code/main.py": source, "code/data.txt": "data", "resources/more.txt": "more"})
    assert box.call(None, skill="a.b").value == {"result": ["data", "more", "def main("]}


def test_nothing_is_written_beside_a_skills_code(synced: GuestBox) -> None:
    synced.call(None, skill=SYNC, args={"n": 1})
    assert list(synced.root.glob("skills/**/__pycache__")) == []


def test_dataclasses_and_type_hints_of_a_skill(box: GuestBox) -> None:
    source = """
from __future__ import annotations
import dataclasses, pickle, typing
@dataclasses.dataclass
class Node:
    next: Node | None = None
def main(args):
    return [typing.get_type_hints(Node)["next"] == Node | None, pickle.loads(pickle.dumps(Node())) == Node()]
"""
    box.mount_skill("a.b", {"code/main.py": source})
    assert box.call(None, skill="a.b").value == {"result": [True, True]}
