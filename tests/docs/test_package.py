"""The wheel that pip makes of the files that the server's image copies: whole, alone, and usable elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("hatchling", reason="the build backend is not installed (./check installs it)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target, context = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("context")
    building, _ = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").split("COPY --from=")
    for line in building.splitlines():
        for name in line.split()[1:-1] if line.startswith("COPY ") else ():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, context / name)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q", "-w", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(context)], check=True, timeout=100)
    (made,) = target.glob("*.whl")
    return made


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    package = ROOT / "src" / "skillyard"
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    wanted = {f"skillyard/{file.relative_to(package)}" for file in files}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == wanted
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_works_when_unpacked_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Against the packages of this interpreter, as a user's environment has them."""
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import skillyard, skillyard.bundled as bundled;"
        f"assert skillyard.__file__.startswith({str(tmp_path)!r}); assert (bundled.GUIDE / 'SKILL.md').is_file();"
        "from skillyard.faces.cli.main import main; sys.argv = ['skillyard', 'version']; main()"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"skillyard {wheel.name.split('-')[1]} ")


def test_its_metadata_name_no_address(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        head = content.read(name).decode().split("\n\n", 1)[0]
    assert "Project-URL" not in head
    assert "Home-page" not in head
    assert "License-Expression: Apache-2.0" in head
