"""Environments are installed once, whole or not at all, and never change."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.engine.config import EnvironmentDefinition
from skillyard.engine.environments import Environments, InstallFailed, digest_of
from skillyard.engine.installer import base_interpreter, install_with_uv
from skillyard.engine.observer import EnvironmentFailed, EnvironmentInstalled, EnvironmentInstalling, Event
from tests.engine.conftest import Rig

pytestmark = pytest.mark.anyio

MINE = {"mine": EnvironmentDefinition(("a-pkg", "b"), ("b",)), "base": EnvironmentDefinition()}


class Installer:
    """Installs what it is told to; ``gate`` holds it, ``fault`` breaks it half-way."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate: asyncio.Event | None = None
        self.fault: Exception | None = None

    async def __call__(self, packages: tuple[str, ...], target: Path) -> None:
        self.calls += 1
        for package in packages:
            (target / f"{package.replace('-', '_')}-2.0.dist-info").mkdir()
            (target / f"{package}.py").write_text("x = 1\n")
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def installer() -> Installer:
    return Installer()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def environments(tmp_path: Path, installer: Installer, events: list[Event]) -> AsyncIterator[Environments]:
    environments = Environments(MINE, tmp_path, installer, events.append)
    yield environments
    await environments.close()


async def test_base_needs_nothing(environments: Environments, installer: Installer, tmp_path: Path) -> None:
    ref = (await environments.get("base")).ref
    assert (ref.name, ref.packages, ref.preload) == ("base", None, ())
    assert installer.calls == 0
    assert list(tmp_path.iterdir()) == []


async def test_concurrent_requests_install_once(
    environments: Environments, installer: Installer, events: list[Event]
) -> None:
    found = await asyncio.gather(*(environments.get("mine") for _ in range(5)))
    assert installer.calls == 1
    assert len({id(environment) for environment in found}) == 1
    environment = found[0]
    assert environment.distributions == {"a-pkg": "2.0", "b": "2.0"}
    assert environment.ref.preload == ("b",)
    assert environment.ref.packages is not None
    assert environment.ref.packages.name == f"mine-{digest_of(MINE['mine'])}"
    assert [type(event) for event in events] == [EnvironmentInstalling, EnvironmentInstalled]


async def test_what_is_installed_is_readable_by_all_and_writable_by_none(environments: Environments) -> None:
    home = (await environments.get("mine")).ref.packages
    assert home is not None
    for path in (home, *home.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o555 if path.is_dir() else 0o444)


async def test_it_is_found_again_after_a_restart(
    environments: Environments, installer: Installer, tmp_path: Path
) -> None:
    first = await environments.get("mine")
    again = await Environments(MINE, tmp_path, installer).get("mine")
    assert again == first
    assert installer.calls == 1


async def test_another_definition_gets_another_directory(
    environments: Environments, installer: Installer, tmp_path: Path
) -> None:
    first = await environments.get("mine")
    changed = {"mine": EnvironmentDefinition(("a-pkg",))}
    second = await Environments(changed, tmp_path, installer).get("mine")
    assert first.ref.packages != second.ref.packages
    assert installer.calls == 2


async def test_a_failure_leaves_nothing_and_is_not_remembered(
    environments: Environments, installer: Installer, events: list[Event], tmp_path: Path
) -> None:
    installer.fault = InstallFailed("no such package: b")
    with pytest.raises(InstallFailed, match="environment 'mine' could not be installed: no such package: b"):
        await environments.get("mine")
    assert list(tmp_path.iterdir()) == []
    assert isinstance(events[-1], EnvironmentFailed)
    installer.fault = None
    assert (await environments.get("mine")).ref.packages is not None


async def test_a_caller_that_goes_away_does_not_stop_it_for_others(
    environments: Environments, installer: Installer
) -> None:
    installer.gate = asyncio.Event()
    gone, stays = (asyncio.create_task(environments.get("mine")) for _ in range(2))
    while not installer.calls:
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    installer.gate.set()
    assert (await stays).ref.name == "mine"


async def test_closing_stops_an_installation_and_leaves_nothing(
    environments: Environments, installer: Installer, tmp_path: Path
) -> None:
    installer.gate = asyncio.Event()
    waiting = asyncio.create_task(environments.get("mine"))
    while not installer.calls:
        await asyncio.sleep(0.001)
    await environments.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert list(tmp_path.iterdir()) == []


async def test_what_a_crash_left_is_cleaned_away(environments: Environments, tmp_path: Path) -> None:
    left = tmp_path / ".tmp-mine-x" / "deep"
    left.mkdir(parents=True)
    (left / "f").write_text("x")
    left.chmod(0o555)
    environments.clean()
    assert list(tmp_path.iterdir()) == []


async def test_unknown_names_are_refused(environments: Environments) -> None:
    with pytest.raises(InvalidInput, match="environment: unknown environment; known are base, mine"):
        await environments.get("other")


async def test_an_environment_that_cannot_be_had_is_a_failed_run(rig: Rig) -> None:
    async def fail(packages: tuple[str, ...], target: Path) -> None:
        raise InstallFailed("the index is not reachable")

    rig.environments = Environments(rig.engine.config.environments, rig.home / "none", fail, rig.events.append)
    rig.configure()
    run = await rig.run(environment="data")
    assert (run["status"], run["error"]["type"]) == ("failed", "SandboxError")
    assert "'data' could not be installed: the index is not reachable" in run["error"]["message"]
    assert (await rig.run())["status"] == "completed"


async def test_uv_explains_what_it_cannot_find(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(InstallFailed, match="Distribution not found at: file:///nowhere"):
        await install_with_uv(("no-such-package @ file:///nowhere/at/all",), tmp_path / "target")


async def test_uv_installs_a_local_wheel(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    await install_with_uv((f"tiny @ {wheel.as_uri()}",), target)
    assert (target / "tiny.py").read_text() == "x = 1\n"


def test_the_base_interpreter_is_no_virtual_environment() -> None:
    assert base_interpreter() != sys.executable or sys.prefix == sys.base_prefix


def _wheel(directory: Path) -> Path:
    import zipfile

    path = directory / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "x = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path
