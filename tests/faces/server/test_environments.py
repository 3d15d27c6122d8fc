"""Packages from an index of our own, built in real sandboxes: once, explained when not, refused where they lie."""

from __future__ import annotations

import gzip
import io
import json
import stat
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.package.environment import Wanted
from skillyard.domain.package.platforms import Platform
from skillyard.faces.cli.commands.environment import write_wheels
from skillyard.faces.cli.main import cli
from skillyard.server_process import ServerProcess
from skillyard.stores.disk import remove_tree
from tests.bundles import skill_files, tar
from tests.conformance.gate.programs.authority import Authority
from tests.unit.engine.packages.fake_builder import pack
from tests.unit.engine.packages.index import Index
from tests.unit.engine.packages.wheels import info_of, installed, make_wheel, wheel_name

CODE = """
import importlib, os, subprocess, sys

def main(args):
    found = {name: importlib.import_module(name).VERSION for name in args["import"]}
    if args.get("start"):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return {"versions": found, "files": sorted(set(os.listdir(".")) - {"out"})}
"""
_TAGS = (
    "cp313-cp313-musllinux_1_2_x86_64",
    "cp313-cp313-manylinux_2_28_aarch64",
    "cp313-cp313-manylinux2014_aarch64",
    "cp313-cp313-manylinux_2_28_x86_64",
    "cp39-abi3-manylinux_2_39_x86_64",
    "py3-none-any",
)
VERSION_OF_BETA = "import beta\ndef main(args): return {'result': beta.VERSION}"
STARTED = b"import os; open('%s', 'a').close()\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("environments")
    path.chmod(0o755)
    yield path
    remove_tree(path)


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with Index() as index:
        index.add("alpha", requires=["beta>=1"])
        index.add("beta", "1.0")
        index.add("beta", "2.0")
        index.add("gamma", requires=["beta<2"])
        index.add("delta", requires=["beta>=2"])
        index.add("windows", tag="cp311-cp311-win_amd64")
        index.put("unbuilt-1.0.tar.gz", b"no archive")
        index.lies[index.add("liar")] = "0" * 64
        index.redirected[index.add("mover")] = "http://127.0.0.2:9/mover-1.0-py3-none-any.whl"
        index.add("sloppy", record=b"sloppy-1.0.dist-info/RECORD,,\n")
        index.add("changed", record=_record("changed").replace(b"sha256=", b"sha256=A", 1))
        index.add("climber", files={"../../climbed.py": b"x", "/tmp/climbed.py": b"x"})
        yield index


@pytest.fixture(scope="module")
def runtime(home: Path, index: Index) -> Iterator[SyncRuntime]:
    with opened(home / "data", index=index.url) as runtime:
        yield runtime


def opened(data_dir: Path, *, settings: dict[str, Any] | None = None, **packages: Any) -> SyncRuntime:
    return SyncRuntime(
        settings=load_settings(data_dir=data_dir, packages={"run_code": ["*"], **packages}, **(settings or {}))
    )


def run(runtime: SyncRuntime, *packages: str, modules: tuple[str, ...] = (), **args: Any) -> dict[str, Any]:
    names = modules or tuple(text.partition("=")[0] for text in packages)
    done = runtime.run_code(CODE, {"import": names, **args}, packages=list(packages))
    output: dict[str, Any] = done.raise_for_status().output
    return output


def why(runtime: SyncRuntime, *packages: str) -> str:
    done = runtime.run_code(CODE, {"import": []}, packages=list(packages))
    assert done.error is not None
    assert done.error["type"] == "SandboxError"
    return str(done.error["message"])


def test_twenty_runs_at_once_build_once(runtime: SyncRuntime, index: Index) -> None:
    with ThreadPoolExecutor(20) as threads:
        done = list(threads.map(lambda _: run(runtime, "alpha", modules=("alpha", "beta")), range(20)))
    assert done == [{"versions": {"alpha": "1.0", "beta": "2.0"}, "files": []}] * 20
    assert index.downloads().count(wheel_name("alpha")) == 2  # for what it requires, and to be installed
    shown = runtime.show_environment(packages=["alpha"])["environment"]
    assert shown["distributions"] == {"alpha": "1.0", "beta": "2.0"}
    assert shown["modules"] == ["alpha", "beta"]
    assert "alpha==1.0 \\\n    --hash=sha256:" in shown["lock"]
    log = b"".join(runtime.stream_blob(shown["log"])).decode()
    assert "Resolving alpha\n" in log
    assert "+ beta==2.0" in log


def test_other_requirements_with_the_same_lock_need_no_download(runtime: SyncRuntime, index: Index) -> None:
    run(runtime, "alpha")
    before = index.downloads().count(wheel_name("alpha"))
    assert run(runtime, "alpha==1.0", "beta")["versions"] == {"alpha": "1.0", "beta": "2.0"}
    first, second = (
        runtime.call("environments.show", {"packages": packages})["environment"]["digest"]
        for packages in (["alpha"], ["alpha==1.0", "beta"])
    )
    assert first == second
    assert index.downloads().count(wheel_name("alpha")) == before + 1  # for what it requires


def test_what_was_resolved_stays_when_the_index_has_something_newer(runtime: SyncRuntime, index: Index) -> None:
    index.add("moving", "1.0")
    assert run(runtime, "moving")["versions"] == {"moving": "1.0"}
    index.add("moving", "2.0")
    runtime.call("environments.remove", {"packages": ["moving"]})
    assert run(runtime, "moving")["versions"] == {"moving": "1.0"}
    runtime.call("environments.build", {"packages": ["moving"], "refresh": True})
    assert run(runtime, "moving")["versions"] == {"moving": "2.0"}


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (["nosuch"], "there is no package 'nosuch' in the index http://127.0.0.1:"),
        (["windows"], "'windows' has no wheel for this platform"),
        (["unbuilt"], 'only a source distribution, and only wheels are taken: packages.source = ["unbuilt"]'),
        (["gamma", "delta"], "cannot be met together: Because all versions of"),
        (["beta>=9"], "cannot be met together: Because only beta<=2.0 is available"),
        (["liar"], "liar==1.0 is not what was locked: the index gives a file with another SHA-256"),
        (["mover"], "the build may not reach 127.0.0.2:9: no operator rule allows 127.0.0.2. Which hosts"),
        (["sloppy"], "the RECORD of 'sloppy' has no digest for"),
        (["changed"], "changed/__init__.py is not what its distribution records"),
    ],
)
def test_a_failure_is_explained(runtime: SyncRuntime, packages: list[str], said: str) -> None:
    message = why(runtime, *packages)
    assert said in message
    assert "whole log: blob:" in message
    shown = runtime.call("environments.show", {"packages": packages})["environment"]
    assert shown["state"] == "failed"
    assert said in shown["error"]


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        (Platform("3.13", "x86_64", 0), "cp313-cp313-musllinux_1_2_x86_64"),
        (Platform("3.13", "aarch64", 28), "cp313-cp313-manylinux_2_28_aarch64"),
        (Platform("3.13", "aarch64", 17), "cp313-cp313-manylinux2014_aarch64"),
        (Platform("3.9", "x86_64", 40, patch=2), "cp39-abi3-manylinux_2_39_x86_64"),
        (Platform("3.9", "x86_64", 38, patch=1), "py3-none-any"),
    ],
)
def test_each_platform_gets_the_wheel_of_its_tag(
    runtime: SyncRuntime, index: Index, platform: Platform, tag: str
) -> None:
    """No sandbox here has these: what is built for them is only looked at."""
    if index.file(wheel_name("tagged", tag=tag)) is None:
        for each in _TAGS:
            index.add("tagged", tag=each, files={"tagged/__init__.py": f"VERSION = '{each}'\n".encode()})
    wanted = Wanted(("tagged",), platform=platform)
    built = runtime._wait(runtime._inner.app.environments.of(wanted, "somebody"))
    packages = built.ref.packages
    assert packages is not None
    assert packages.path is not None
    assert (packages.path / "tagged" / "__init__.py").read_text() == f"VERSION = '{tag}'\n"
    assert not list(packages.path.rglob("*.pyc"))
    assert built.built is not None
    assert built.built.lock.platform == platform.name


def test_a_link_in_a_wheel_is_no_link(runtime: SyncRuntime, index: Index) -> None:
    packed = io.BytesIO(make_wheel("linked"))
    with zipfile.ZipFile(packed, "a") as archive:
        entry = zipfile.ZipInfo("linked/passwd")
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    index.put(wheel_name("linked"), packed.getvalue())
    runtime.call("environments.build", {"packages": ["linked"]})
    assert not [path for path in (runtime.settings.data_dir / "environments").rglob("*") if path.is_symlink()]


def test_a_wheel_that_would_climb_out_is_refused_by_name(runtime: SyncRuntime) -> None:
    assert "the wheel of 'climber' holds '../../climbed.py', outside of its own tree" in why(runtime, "beta", "climber")
    assert not list(runtime.settings.data_dir.rglob("climbed.py"))


def test_no_code_of_a_package_runs_before_it_is_imported(runtime: SyncRuntime, index: Index) -> None:
    """Neither .pth files nor sitecustomize, but in interpreters that the run itself starts, as anywhere."""
    index.add("eager", files={"eager.pth": STARTED % b"pth", "sitecustomize.py": STARTED % b"site"})
    assert run(runtime, "eager")["files"] == []
    assert run(runtime, "eager", start=True)["files"] == ["pth", "site"]


def test_what_the_operator_names_is_built_from_source(home: Path, index: Index) -> None:
    """Its build backend lies in it; others are taken as wheels all the same."""
    index.put("sourced-1.0.tar.gz", _sdist("sourced"))
    with opened(home / "sourced", index=index.url, source=["sourced"]) as runtime:
        assert run(runtime, "sourced", "beta")["versions"] == {"sourced": "1.0", "beta": "2.0"}
        assert "only wheels are taken" in why(runtime, "unbuilt")
        first = runtime.call("environments.show", {"packages": ["sourced", "beta"]})["environment"]["digest"]
    index.add("sourced")
    with opened(home / "sourced", index=index.url) as runtime:  # a wheel is another thing than what was built
        run(runtime, "sourced", "beta")
        assert runtime.call("environments.show", {"packages": ["sourced", "beta"]})["environment"]["digest"] != first


def test_offline_from_the_wheels_of_another_server(runtime: SyncRuntime, index: Index, home: Path) -> None:
    run(runtime, "alpha")
    digest = runtime.call("environments.show", {"packages": ["alpha"]})["environment"]["digest"]
    wheels = home / "wheels"
    found = runtime.call("environments.wheels", {"environment": digest})
    names = [path.name for path in write_wheels(runtime, found, wheels, quiet=True)]
    assert sorted(names) == ["alpha-1.0-py3-none-any.whl", "beta-2.0-py3-none-any.whl"]
    asked = len(index.asked)
    with opened(home / "offline", index=index.url, wheels=str(wheels), offline=True) as offline:
        assert run(offline, "alpha")["versions"] == {"alpha": "1.0"}
        assert "there is no package 'gamma' in packages.wheels" in why(offline, "gamma")
    assert len(index.asked) == asked


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["gvisor", "landlock"])
def test_behind_other_isolations(home: Path, index: Index, isolation: str) -> None:
    """What has no network builds offline, and with an index behind native, where that stands."""
    wheels = home / f"wheels-of-{isolation}"
    wheels.mkdir()
    (wheels / wheel_name("beta")).write_bytes(make_wheel("beta"))
    policy = {"policy": {"isolation": isolation}}
    with opened(home / f"{isolation}-off", settings=policy, wheels=str(wheels), offline=True) as runtime:
        offer = runtime._inner.app.backends.default
        if offer is None or offer.refusal is not None:
            pytest.skip(f"{isolation} does not stand here: {offer and offer.refusal}")
        assert runtime.run_code(VERSION_OF_BETA, packages=["beta"]).raise_for_status().output == {"result": "1.0"}
    with opened(home / f"{isolation}-on", settings=policy, index=index.url) as runtime:
        done = runtime.run_code(VERSION_OF_BETA, packages=["beta"])
        if done.error is not None and "native does not stand" in done.error["message"]:
            pytest.skip(done.error["message"])
        assert done.raise_for_status().output == {"result": "2.0"}


def test_an_approved_skill_keeps_its_packages_beside_another(home: Path) -> None:
    """uv is told which versions are held, and what it gives is compared with the files that they had."""
    with Index() as moving, opened(home / "approved", index=moving.url) as runtime:
        moving.add("alpha", requires=["beta>=1"])
        moving.add("beta", "1.0")
        publish(runtime, "acme.asks", "alpha")
        assert said(runtime, "acme.asks") == {"alpha": "1.0", "beta": "1.0"}
        moving.add("alpha", "2.0", requires=["beta>=1"])
        moving.add("beta", "2.0")
        moving.add("gamma", requires=["beta"])
        publish(runtime, "acme.more", "gamma", requires=["acme.asks"])
        assert said(runtime, "acme.more") == {"alpha": "1.0", "beta": "1.0", "gamma": "1.0"}

        moving.add("delta", requires=["beta>=2"])
        publish(runtime, "acme.other", "delta")
        refused = runtime.execute_skill("acme.asks", mount_skills=["acme.other"])
        assert refused.error is not None
        assert (
            "'acme.asks' 1.0.0 is approved with beta 1.0, 'acme.other' 1.0.0 with beta 2.0" in refused.error["message"]
        )
        newer = runtime.run_code(CODE, {"import": []}, mount_skills=["acme.asks"], packages=["delta"])
        assert newer.error is not None
        assert "beta==1.0" in newer.error["message"]
        assert "runs get the packages that 'acme.asks' 1.0.0" in newer.error["message"]

        moving.add("epsilon")
        moving.lies["beta-1.0-py3-none-any.whl"] = "0" * 64
        other = runtime.run_code(CODE, {"import": []}, mount_skills=["acme.asks"], packages=["epsilon"])
        assert other.error is not None
        assert "'beta' was approved as 1.0, and the resolution gives only other files" in other.error["message"]


def publish(runtime: SyncRuntime, name: str, package: str, requires: Sequence[str] = ()) -> None:
    """An approved skill that tells the versions of the packages that are there."""
    files = skill_files(name)
    head, table, rest = files["skill.toml"].decode().partition("[runtime]")
    manifest = f'{head}requires = {json.dumps(requires)}\n{table}{rest}\n[dependencies]\npython = ["{package}"]\n'
    code = b"""from importlib.metadata import distributions

def main(args):
    return {found.name: found.version for found in distributions() if "packages" in str(found.locate_file(""))}
"""
    runtime.publish_skill(tar({**files, "skill.toml": manifest.encode(), "code/main.py": code}))
    runtime.call("catalogue.approve", {"name": name})


def said(runtime: SyncRuntime, name: str) -> dict[str, str]:
    output: dict[str, str] = runtime.execute_skill(name).raise_for_status().output
    return output


def test_credentials_of_a_private_index_stay_at_the_gate(home: Path) -> None:
    authority = Authority(home)
    with Index(authority.context("index.test"), "index.test") as private:
        private.add("alpha")
        private.login = "Basic " + b64encode(b"__token__:correct-horse").decode()
        network = {"hosts": {"index.test": ["127.0.0.1"]}, "ca_file": authority.ca_file}
        with opened(home / "private", settings={"network": network}, index=private.url, secret="INDEX") as runtime:
            assert "packages.secret names 'INDEX', which is not stored" in why(runtime, "alpha")
            runtime.call("secrets.set", {"name": "INDEX", "value": "battery-staple"})
            runtime.call("environments.build", {"packages": ["alpha"]})
            assert "does not accept them (HTTP 401): see packages.secret" in why(runtime, "alpha")
            runtime.call("secrets.set", {"name": "INDEX", "value": "correct-horse"})
            built = runtime.call("environments.build", {"packages": ["alpha"]})["environment"]
            assert built["state"] == "ready", built
            assert run(runtime, "alpha")["versions"] == {"alpha": "1.0"}
            assert b"correct-horse" not in b"".join(runtime.stream_blob(built["log"]))
            assert runtime.call("environments.wheels", {"packages": ["alpha"]})["size_bytes"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"timeout_s": 2}, "took longer than 2 s (packages.timeout_s)"),
        ({"disk_mb": 24}, "needs more than its disk of 24 MiB (packages.disk_mb)"),
        pytest.param(
            {"memory_mb": 16}, "needs more than its memory of 16 MiB (packages.memory_mb)", marks=pytest.mark.long
        ),
    ],
)
def test_a_build_has_limits_of_its_own(home: Path, limits: dict[str, Any], said: str) -> None:
    large = make_wheel("large", files={"large/data.bin": bytes(range(256)) * 4 * 40_000})
    with Index() as index:
        index.put(wheel_name("large"), large)
        if "timeout_s" in limits:
            index.answering.clear()
        with opened(home / "-".join(limits), index=index.url, **limits) as runtime:
            assert said in why(runtime, "large")
        index.answering.set()


@pytest.mark.long
def test_an_index_that_is_away_is_named(home: Path) -> None:
    with Index() as index:
        url = index.url
    with opened(home / "away", index=url) as runtime:
        assert f"the index cannot be read: {url}/alpha/" in why(runtime, "alpha")


def test_the_command_line_builds_shows_and_removes(home: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"SKILLYARD_PACKAGES__INDEX": index.url, "SKILLYARD_PACKAGES__RUN_CODE": '["*"]'}
    monkeypatch.setenv("SKILLYARD_DATA_DIR", str(home / "cli"))
    for name in ("SKILLYARD_URL", "SKILLYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def skillyard(*words: str) -> Result:
        return CliRunner().invoke(cli, words)

    with ServerProcess(home / "cli", settings=settings):
        built = skillyard("environment", "build", "--package", "beta<2")
        assert built.exit_code == 0, built.output
        assert "beta 1.0" in built.stdout
        assert "environment: resolving" in built.stderr or "environment: installing" in built.stderr
        digest = json.loads(skillyard("environment", "show", "--package", "beta<2", "--json").stdout)["digest"]
        assert "beta 1.0" in skillyard("environment", "show", digest).stdout
        listed = skillyard("environment", "list").stdout
        assert digest[:16] in listed
        assert "data " in listed
        assert "beta 1.0" in skillyard("environment", "show", digest[:16]).stdout
        failed = skillyard("environment", "build", "--package", "nosuch")
        assert failed.exit_code == 1
        assert "environment failed: there is no package 'nosuch'" in failed.stderr
        written = skillyard("environment", "wheels", digest, str(home / "wheels-of-beta"))
        assert written.stdout.splitlines() == [str(home / "wheels-of-beta" / wheel_name("beta", "1.0"))]
        removed = skillyard("environment", "remove", digest)
        assert (removed.exit_code, removed.stderr) == (0, f"removed {digest}\n")
        assert skillyard("environment", "show", digest).exit_code == 2
        assert skillyard("environment", "build").exit_code == 2
        for act in ("show", "build", "remove"):
            nothing = skillyard("environment", act, "nosuch")
            assert (nothing.exit_code, "no environment and no skill is called 'nosuch'" in nothing.stderr) == (2, True)


def _sdist(name: str) -> bytes:
    backend = f"""
import os
WHEEL = {make_wheel(name)!r}
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with open(os.path.join(directory, "{wheel_name(name)}"), "wb") as file:
        file.write(WHEEL)
    return "{wheel_name(name)}"
"""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\n',
        "backend.py": backend,
    }
    return gzip.compress(pack({f"{name}-1.0/{path}": text.encode() for path, text in files.items()}))


def _record(name: str) -> bytes:
    return installed(name)[f"{info_of(name, '1.0')}/RECORD"]
