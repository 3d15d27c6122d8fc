"""What the documents name exists: pages written from the program, links, files, tests, checks, settings."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from skillyard.testing.sandbox_suite import CHECKS
from skillyard.verify.families import everything
from tests.docs.test_examples import DOCUMENTS, ROOT

GENERATED = (
    "../src/skillyard/client/method_table.py",
    "archives.md",
    "cli.md",
    "methods.md",
    "openrpc.json",
    "programs.md",
    "python.md",
    "rules.md",
    "settings.md",
    "system-calls.md",
    "walls.md",
)
PROSE = [file for file in DOCUMENTS if file.name not in GENERATED]
SECTIONS = {check.section for check in CHECKS} | {attack.family for attack in everything()}


def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def test_reference_pages_are_current() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    assert sorted(pages) == sorted(GENERATED)
    stale = [name for name, text in pages.items() if text_of(ROOT / "docs" / name) != text]
    assert stale == [], "run: python docs/generate.py"


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", text_of(file))
    broken = [path + anchor for path, anchor in targets if not leads_somewhere(file, path, anchor.removeprefix("#"))]
    assert broken == []


def leads_somewhere(file: Path, path: str, anchor: str) -> bool:
    target = file.parent / path if path else file
    return target.exists() and (not anchor or anchor in anchors_of(target))


def anchors_of(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", PROSE, ids=lambda file: file.name)
def test_named_files_exist(file: Path) -> None:
    """Everything in backticks that looks like a path of the repository."""
    named = set(re.findall(r"`((?:src|tests|docs|requirements|\.ci)/[\w./-]*)(?:::\w+)?`", text_of(file)))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_architecture_names_modules_that_exist() -> None:
    """Also those that it names by the end of their path, such as ``engine/packages/ahead.py``."""
    known = [str(path) for path in (ROOT / "src").rglob("*")] + [str(path) for path in (ROOT / "tests").rglob("*.py")]
    pattern = r"`((?:[\w.]+/)*\w+\.py|(?:domain|engine|stores)/[\w/]+)`"
    named = set(re.findall(pattern, text_of(ROOT / "ARCHITECTURE.md")))
    assert [name for name in sorted(named) if not any(path.endswith("/" + name) for path in known)] == []


def test_front_pages_are_short() -> None:
    lines = {name: text_of(ROOT / name).count("\n") for name in ("README.md", "ARCHITECTURE.md")}
    assert lines["README.md"] < 200
    assert lines["ARCHITECTURE.md"] < 350


@pytest.mark.parametrize("file", PROSE, ids=lambda file: file.name)
def test_named_tests_exist(file: Path) -> None:
    named = re.findall(r"`(tests/[\w./-]+\.py)::(\w+)`", text_of(file))
    assert [f"{path}::{test}" for path, test in named if f"def {test}(" not in text_of(ROOT / path)] == []


@pytest.mark.parametrize("file", PROSE, ids=lambda file: file.name)
def test_named_checks_exist(file: Path) -> None:
    """Checks of the sandbox suite are named ``section-check``, attacks of ``skillyard verify`` ``family-attack``, and
    ``family-*`` stands for all of them."""
    known = {check.id for check in CHECKS} | {f"{section}-*" for section in SECTIONS}
    known |= {attack.name for attack in everything()}
    pattern = rf"`((?:{'|'.join(sorted(SECTIONS))})-[\w*]+)`"
    assert [name for name in re.findall(pattern, text_of(file)) if name not in known] == []


def test_architecture_names_every_import_rule() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    architecture = text_of(ROOT / "ARCHITECTURE.md")
    assert [contract["name"] for contract in contracts if contract["name"] not in architecture] == []


def test_security_names_every_wall_and_limit() -> None:
    from skillyard.domain.sandbox.guarantees import PROTECTIONS

    security = text_of(ROOT / "SECURITY.md")
    assert [name for name in PROTECTIONS if f"`{name}`" not in security] == []


def test_security_and_the_page_name_every_guarantee_with_its_walls() -> None:
    from skillyard.domain.sandbox.guarantees import BOUNDARIES, GUARANTEES

    page = text_of(ROOT / "docs" / "isolation.md")
    assert [name for name in GUARANTEES if f"`{name}`" not in page] == []
    assert [name for name in BOUNDARIES if f"`{name}`" not in text_of(ROOT / "SECURITY.md")] == []
    for name, walls in BOUNDARIES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        bearing, further = (tuple(re.findall(r"`(\w+)`", cell)) for cell in row.split("|")[3:5])
        assert (bearing, further) == (walls.bearing, walls.further)


def test_the_page_of_limits_gives_those_that_hold() -> None:
    from skillyard.domain.work.limits import LimitFamily

    family, page = LimitFamily(), text_of(ROOT / "docs" / "limits.md")
    for name, default in family.defaults.as_dict().items():
        row = f"| `{name}` | {default:,} | {getattr(family.maxima, name):,} |"
        assert row in page


def test_nothing_of_a_machine_is_in_the_lock() -> None:
    lock = text_of(ROOT / "requirements" / "dev.txt")
    assert re.findall(r"^.*(?:://|--index|--find-links|@ ).*$", lock, re.MULTILINE) == []
    unpinned = [line for line in lock.splitlines() if line and line[0] not in " #" and "==" not in line]
    assert unpinned == []


def test_lock_holds_what_the_project_asks_for() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[<>=!~\[ ;]", text)[0].lower() for text in asked}
    locked = set(re.findall(r"^([a-z0-9._-]+)==", text_of(ROOT / "requirements" / "dev.txt"), re.MULTILINE))
    assert names - locked == set()
