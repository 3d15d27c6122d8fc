"""The four checks of paths that S3 lists for its ``local`` executor, each with ways out, over the real srt.

Its ``extra_files.path`` are the names of a skill's files here: a run brings no other files along.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput, SkillyardError
from tests.bundles import skill_files, tar
from tests.conformance.sandbox import srt_ground

pytestmark = [
    pytest.mark.ordinary,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(srt_ground.absent()), reason=srt_ground.absent()),
]
NAME = "acme.notes"
PLANT = """
mkdir ../real; ln -s /tmp ../way; ln -s ../real ../sideways; ln -s {host} ../host; ln -s /proc/self ../self
ln -s ../../../../../../../..{host}/word climb; ln -s {host}/word word
"""
"""Links that lead out of the workspace, made by a command for the calls after it."""
OUTSIDE = ("../../x", "/etc/x", "/workspace/../etc/x", "a/../../../x", "/skills/acme.notes/x", "..", "a\0b", "a\\..\\x")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that everybody may read and write."""
    place = tmp_path_factory.mktemp("host")
    (place / "word").write_text("of the host")
    (place / "word").chmod(0o666)
    place.chmod(0o777)
    return place


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory, host: Path) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp("paths")
    skill = home / "skills" / NAME
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: {NAME}\ndescription: Notes\n---\n# Notes\n")
    settings = load_settings(
        data_dir=home / "data",
        skills_dirs=[home / "skills"],
        policy={"isolation": "srt"},
        srt=srt_ground.settings().model_dump(exclude_unset=True),
        limits={"disk_mb": 32},
    )
    with SyncRuntime(settings=settings) as runtime:
        assert ran(runtime, PLANT.format(host=host), session_id="planted")["status"] == "succeeded"
        yield runtime
        runtime.end_session("planted")


def ran(runtime: SyncRuntime, command: str, **asked: Any) -> dict[str, Any]:
    told: dict[str, Any] = runtime.run_cmd(NAME, command, **asked)
    assert told["isolation"] == "srt"
    return told


def untouched(host: Path) -> bool:
    return [path.name for path in host.iterdir()] == ["word"] and (host / "word").read_text() == "of the host"


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_out_are_refused_by_name(runtime: SyncRuntime, path: str) -> None:
    blob = runtime.put_blob(b"of the attack", "text/plain").blob_id
    ways: dict[str, dict[str, Any]] = {
        "inputs": {"inputs": [{"artifact_id": blob, "mount_path": path}]},
        "outputs": {"outputs": [{"path": path}]},
        "workdir": {"workdir": path},
    }
    for name, asked in ways.items():
        with pytest.raises(InvalidInput, match=name):
            ran(runtime, "true", **asked)


@pytest.mark.parametrize("link", ["/workspace/way", "/workspace/sideways", "/workspace/host", "/workspace/self/cwd"])
def test_an_input_goes_through_no_link(runtime: SyncRuntime, host: Path, link: str) -> None:
    blob = runtime.put_blob(b"of the attack", "text/plain").blob_id
    told = ran(runtime, "true", session_id="planted", inputs=[{"artifact_id": blob, "mount_path": f"{link}/brought"}])
    assert told["status"] == "failed", told
    assert untouched(host)
    found = ran(runtime, "find / -name brought 2>/dev/null; true", session_id="planted")
    assert found["stdout"] == ""


@pytest.mark.parametrize(
    "link", ["word", "climb", "/workspace/host/word", "/workspace/self/environ", "/workspace/h*/*"]
)
def test_an_output_comes_through_no_link(runtime: SyncRuntime, link: str) -> None:
    told = ran(runtime, "true", session_id="planted", outputs=[{"path": link}])
    assert told["created_artifacts"] == [], told
    assert len(told["output_errors"]) == 1


@pytest.mark.parametrize("link", ["/workspace/way", "/workspace/host", "/workspace/self/root", "/workspace/sideways"])
def test_a_working_directory_is_no_link(runtime: SyncRuntime, link: str) -> None:
    told = ran(runtime, "pwd -P; echo of the attack > brought", session_id="planted", workdir=link)
    assert (told["status"], told["stdout"]) == ("failed", ""), told


@pytest.mark.parametrize("name", ["../out", "/etc/out", "code/../../out", "a\\b"])
def test_a_file_of_a_skill_leads_nowhere_else(runtime: SyncRuntime, name: str) -> None:
    with pytest.raises(SkillyardError, match=r"\[archive-"):
        runtime.publish_skill(tar({**skill_files("acme.evil"), name: b"of the attack"}))


def test_a_skill_replaces_no_place_that_a_command_planted(runtime: SyncRuntime, host: Path) -> None:
    told = ran(runtime, f"cd /; rm -rf /workspace/skill; ln -s {host} /workspace/skill", session_id="moved")
    assert told["status"] == "succeeded", told
    told = ran(runtime, "pwd -P; ls; echo of the attack > brought", session_id="moved")
    assert untouched(host)
    assert str(host) not in told["stdout"]
    runtime.end_session("moved")
