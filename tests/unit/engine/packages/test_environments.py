"""Environments are resolved and built once, whole or not at all, and shared."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.packages import PackagesSettings
from skillyard.domain.errors import Forbidden, InvalidInput, SkillyardError
from skillyard.domain.package.environment import Lock, Wanted
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.engine.observer import EnvironmentFailed, EnvironmentInstalled, EnvironmentInstalling
from skillyard.engine.packages.building import RETRY_S
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.packages.environments import Environments
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.packages.building import MINE, kept, until

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]


async def test_base_needs_nothing(environments: Environments, rig: Rig) -> None:
    ref = (await environments.get("base")).ref
    assert (ref.name, ref.packages, ref.preload) == ("base", None, ())
    assert rig.builder.resolved == []
    assert kept(rig) == []


async def test_concurrent_requests_build_once(environments: Environments, rig: Rig) -> None:
    found = await asyncio.gather(*(environments.get("mine") for _ in range(20)))
    assert len(rig.builder.resolved) == len(rig.builder.installed) == 1
    assert len({environment.ref for environment in found}) == 1
    environment = found[0]
    assert environment.distributions == {"a-pkg": "1.5.0", "b": "1.5.0"}
    assert environment.ref.packages is not None
    assert environment.ref.packages.digest == environment.digest == environment.ref.digest
    assert environment.built is not None
    assert environment.built.modules == ("a_pkg", "b")
    assert [type(event) for event in rig.events[-2:]] == [EnvironmentInstalling, EnvironmentInstalled]


async def test_other_requirements_with_the_same_lock_share_it(environments: Environments, rig: Rig) -> None:
    rig.builder.gate = asyncio.Event()
    both = asyncio.gather(environments.get("mine"), environments.get("same"))
    await until(lambda: len(rig.builder.resolved) == 2)
    rig.builder.gate.set()
    first, second = await both
    assert first.ref.packages == second.ref.packages
    assert len(rig.builder.installed) == 1
    assert len(kept(rig)) == 2  # the directory, and what is known of it


async def test_what_is_built_is_readable_by_all_and_writable_by_none(environments: Environments) -> None:
    packages = (await environments.get("mine")).ref.packages
    assert packages is not None
    home = packages.path
    assert home is not None
    for path in (home, *home.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o555 if path.is_dir() else 0o444)


async def test_it_is_found_again_after_a_restart_with_the_same_versions(environments: Environments, rig: Rig) -> None:
    first = await environments.get("mine")
    rig.builder.version = "2.0"
    rig.configure(environments=MINE)
    found = await rig.app.environments.get("mine")
    assert (found.ref, found.distributions) == (first.ref, first.distributions)
    assert len(rig.builder.installed) == 1
    await rig.app.environments.remove(first.digest, forget=False)
    again = await rig.app.environments.get("mine")
    assert again.distributions == first.distributions
    assert len(rig.builder.resolved) == 1
    assert len(rig.builder.installed) == 2


async def test_a_refresh_resolves_anew(environments: Environments, rig: Rig) -> None:
    first = await environments.get("mine")
    rig.builder.version = "2.0"
    answer = await rig.call("environments.build", environment="mine", refresh=True)
    assert answer["environment"]["distributions"] == {"a-pkg": "2.0", "b": "2.0"}
    assert (await environments.get("mine")).digest != first.digest


async def test_one_that_is_built_again_has_another_name(environments: Environments, rig: Rig) -> None:
    """So that no warm interpreter of the one that was removed serves for it."""
    first = await environments.get("mine")
    await environments.remove(first.digest, forget=False)
    again = await environments.get("mine")
    assert again.ref.digest == first.ref.digest
    assert again.ref.name != first.ref.name


async def test_a_failure_leaves_nothing_and_is_remembered_for_a_while(environments: Environments, rig: Rig) -> None:
    rig.builder.fault = BuildFailed("no such package: b")
    for _ in range(3):
        with pytest.raises(BuildFailed, match="environment 'mine' could not be built: no such package: b"):
            await environments.get("mine")
    assert kept(rig) == []
    assert len(rig.builder.installed) == 1
    assert isinstance(rig.events[-1], EnvironmentFailed)
    rig.builder.fault = None
    rig.clock.time += RETRY_S + 1
    assert (await environments.get("mine")).ref.packages is not None


async def test_who_asks_for_a_build_as_such_tries_again_at_once(environments: Environments, rig: Rig) -> None:
    rig.builder.fault = BuildFailed("the index is away")
    with pytest.raises(BuildFailed):
        await environments.get("mine")
    failed = (await rig.call("environments.show", environment="mine"))["environment"]
    assert (failed["state"], failed["error"]) == ("failed", "the index is away")
    assert b"Failed: the index is away" in await rig.content(failed["log"])
    rig.builder.fault = None
    built = (await rig.call("environments.build", environment="mine"))["environment"]
    assert built["state"] == "ready"
    assert b"Downloading" in await rig.content(built["log"])


async def test_a_lock_that_cannot_be_installed_is_not_kept(environments: Environments, rig: Rig) -> None:
    rig.builder.fault = BuildFailed("hash mismatch")
    with pytest.raises(BuildFailed):
        await environments.get("mine")
    rig.builder.fault = None
    rig.clock.time += RETRY_S + 1
    await environments.get("mine")
    assert len(rig.builder.resolved) == 2


async def test_a_caller_that_goes_away_does_not_stop_it_for_others(environments: Environments, rig: Rig) -> None:
    rig.builder.gate = asyncio.Event()
    gone, stays = (asyncio.create_task(environments.get("mine")) for _ in range(2))
    await until(lambda: rig.builder.installed)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    rig.builder.gate.set()
    assert (await stays).distributions


async def test_who_may_ask_for_what(environments: Environments, rig: Rig) -> None:
    rig.configure(environments=MINE, packages=PackagesSettings(run_code=("b",)))
    executes = Principal("e", frozenset({Scope.EXECUTE}))
    codes = Principal("c", frozenset({Scope.RUN_CODE}))

    async def state(principal: Principal, **params: Any) -> str:
        return str((await rig.call("environments.build", principal, **params))["environment"]["state"])

    assert await state(codes, packages=["b"]) == "ready"
    assert await state(executes, environment="mine") == "ready"
    with pytest.raises(Forbidden, match=r"packages\.run_code does not admit"):
        await state(codes, packages=["a-pkg"])
    with pytest.raises(Forbidden, match="lacks the scope 'run_code'"):
        await state(executes, packages=["b"])
    with pytest.raises(Forbidden, match="admin"):
        await state(codes, packages=["b"], refresh=True)
    with pytest.raises(InvalidInput, match="must be a requirement"):
        await state(codes, packages=["b @ https://x"])
    with pytest.raises(InvalidInput, match="exactly one of"):
        await state(codes, packages=["b"], environment="mine")
    for method in ("environments.list", "environments.remove"):
        with pytest.raises(Forbidden):
            await rig.call(method, codes, **({"environment": "mine"} if method.endswith("remove") else {}))


async def test_a_skill_names_the_environment_that_its_run_gets(environments: Environments, rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", environment="mine", needs=Needs(dependencies=("rich",))))
    shown = (await rig.call("environments.show", skill="a.b"))["environment"]
    assert (shown["state"], shown["name"]) == ("absent", "a.b@1.0.0")
    assert shown["requirements"] == ["a-pkg", "b", "rich"]
    built = (await rig.call("environments.build", skill="a.b"))["environment"]
    run = await rig.call("execute_skill", name="a.b")
    record = await rig.record(run)
    assert record.digests["environment"] == built["digest"]
    assert run["environment"] == record.environment == f"mine+{built['digest'][:16]}"
    shown = (await rig.call("environments.show", environment=built["digest"][:16]))["environment"]
    assert shown["digest"] == built["digest"]
    with pytest.raises(SkillyardError, match="no environment has this name"):
        await rig.call("environments.show", environment=built["digest"][:15])
    assert len(rig.builder.installed) == 1


async def test_nothing_is_built_for_a_run_that_lacks_a_secret(environments: Environments, rig: Rig) -> None:
    needs = Needs(dependencies=("rich",), secrets=(SecretNeed("TOKEN"), SecretNeed("EXTRA", optional=True)))
    rig.skills.add(a_skill("a.b", needs=needs))
    run = await rig.call("execute_skill", name="a.b")
    assert (run["error"]["type"], rig.builder.resolved) == ("MissingSecret", [])
    assert "TOKEN" in run["error"]["message"]
    assert "EXTRA" not in run["error"]["message"]
    rig.secrets.values["TOKEN"] = "tok-123456"
    assert (await rig.call("execute_skill", name="a.b"))["status"] == "completed"
    assert rig.builder.resolved == [("rich",)]


async def test_progress_is_shown(environments: Environments, rig: Rig) -> None:
    assert (await rig.call("environments.show", environment="mine"))["environment"]["state"] == "absent"
    rig.builder.gate = asyncio.Event()
    started = (await rig.call("environments.build", environment="mine", wait=False))["environment"]
    assert started["state"] == "waiting"
    await until(lambda: rig.builder.installed)
    shown = (await rig.call("environments.show", environment="mine"))["environment"]
    assert (shown["state"], shown["line"]) == ("installing", "Downloading")
    assert [build["state"] for build in (await rig.call("environments.list"))["builds"]] == ["installing"]
    rig.builder.gate.set()
    ready = (await rig.call("environments.build", environment="mine"))["environment"]
    assert (ready["state"], ready["requirements"]) == ("ready", ["a-pkg", "b"])
    listed = await rig.call("environments.list")
    assert ([e["digest"] for e in listed["environments"]], listed["builds"]) == ([ready["digest"]], [])
    assert ("lock" in ready, "lock" in listed["environments"][0]) == (True, False)
    states = {one["name"]: (one["state"], one.get("digest")) for one in listed["named"]}
    assert states == {"base": ("ready", ""), "mine": ("ready", ready["digest"]), "same": ("absent", None)}


async def test_closing_stops_a_build_and_leaves_nothing(environments: Environments, rig: Rig) -> None:
    rig.builder.gate = asyncio.Event()
    waiting = asyncio.create_task(environments.get("mine"))
    await until(lambda: rig.builder.installed)
    await environments.close()
    with pytest.raises(BuildFailed, match="shutting down"):
        await waiting
    assert kept(rig) == []
    with pytest.raises(BuildFailed, match="shutting down"):
        await environments.get("mine")


async def test_what_a_crash_left_is_swept(environments: Environments, rig: Rig) -> None:
    digest = (await environments.get("mine")).digest
    home = rig.home / "environments"
    sealed = home / ".tmp-x" / "deep"
    sealed.mkdir(parents=True)
    sealed.chmod(0o555)
    (home / "0123456789abcdef.json").write_text("{}")
    (home / "00000000000000aa").mkdir()
    (home / "locks" / ".tmp-a.json").write_text("x")
    await environments.clean()
    assert kept(rig) == [digest, f"{digest}.json"]
    assert len(list((home / "locks").iterdir())) == 1


async def test_a_damaged_record_means_that_it_is_built_again(environments: Environments, rig: Rig) -> None:
    digest = (await environments.get("mine")).digest
    (rig.home / "environments" / f"{digest}.json").write_text('{"digest": 1')
    rig.configure(environments=MINE)
    await rig.app.environments.clean()
    assert kept(rig) == []
    assert (await rig.app.environments.get("mine")).digest == digest


async def test_unknown_names_are_refused(environments: Environments) -> None:
    with pytest.raises(InvalidInput, match="environment: unknown environment; known are base, mine, same"):
        await environments.get("other")


async def test_an_environment_that_cannot_be_had_is_a_failed_run(rig: Rig) -> None:
    rig.builder.fault = BuildFailed("the index is not reachable")
    run = await rig.run(environment="data")
    assert (run["status"], run["error"]["type"]) == ("failed", "SandboxError")
    assert "'data' could not be built: the index is not reachable" in run["error"]["message"]
    assert "whole log: blob:" in run["error"]["message"]
    assert (await rig.run())["status"] == "completed"


async def test_a_machinery_fault_is_told_as_one(environments: Environments, rig: Rig) -> None:
    rig.builder.fault = RuntimeError("a bug")
    with pytest.raises(BuildFailed, match="an internal fault ended the build"):
        await environments.get("mine")


async def test_removing_needs_an_admin_and_what_is_not_there_is_told(environments: Environments, rig: Rig) -> None:
    with pytest.raises(SkillyardError, match="it is not built"):
        await rig.call("environments.remove", environment="mine")
    await environments.get("mine")
    removed = await rig.call("environments.remove", environment="mine", forget=True)
    assert kept(rig) == []
    assert removed["removed"]
    assert list((rig.home / "environments" / "locks").iterdir()) == []


def test_requirements_are_a_set() -> None:
    assert Wanted.of(["b", " a  >=1 ", "b"]) == Wanted.of(["a >=1", "b"])


def test_lock_files_are_small_and_private(tmp_path: Path) -> None:
    from skillyard.stores.files.environments import read_json, write_json

    write_json(tmp_path / "x.json", {"a": 1})
    assert read_json(tmp_path / "x.json") == {"a": 1}
    assert read_json(tmp_path / "y.json") is None


def test_digests_are_whole() -> None:
    """Who chooses two sets of requirements, or two locks, finds two that agree in 64 bits within hours: one to be
    approved, the other to be built."""
    digests = [Wanted.of(["a", "b"]).digest, Lock("a==1", "x").digest]
    assert [len(digest) for digest in digests] == [64, 64]
