"""srt's own settings: written from ours, or an operator's file that opens nothing more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.config.srt import SrtSettings
from skillyard.domain.errors import InvalidInput
from skillyard.sandbox.srt.settings import read_file, settings

CLOSED: dict[str, Any] = {
    "network": {"allowedDomains": [], "deniedDomains": ["*"]},
    "filesystem": {"denyRead": ["/etc/ssl"], "allowWrite": ["/workspace", "/tmp/x"], "denyWrite": ["/workspace/a"]},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "service.toml"
    monkeypatch.delenv("SKILLYARD_SRT__COMMAND", raising=False)
    monkeypatch.setenv("SKILLYARD_CONFIG", str(path))
    monkeypatch.setenv("SKILLYARD_DATA_DIR", str(tmp_path / "data"))
    return path


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "srt.json"
    given: dict[str, Any] = {name: dict(value) for name, value in CLOSED.items()}
    for name, more in changes.items():
        given.setdefault(name, {})
        if isinstance(more, dict):
            given[name] |= more
        else:
            given[name] = more
    path.write_text(json.dumps(given))
    return path


def test_generated_settings_open_nothing_but_the_places_for_files() -> None:
    made = settings(SrtSettings(deny_read=("/etc/ssl",), deny_write=("/workspace/kept",)), "/run/srt/bwrap")
    assert made["network"] == {"allowedDomains": [], "deniedDomains": [], "strictAllowlist": True}
    assert made["filesystem"]["allowWrite"] == ["/workspace", "/tmp"]
    assert made["filesystem"]["denyRead"] == ["/etc/ssl"]
    assert made["filesystem"]["denyWrite"] == ["/workspace/kept"]
    assert made["bwrapPath"] == "/run/srt/bwrap"


def test_a_file_that_opens_nothing_is_taken_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_file(path) == CLOSED
    ours = SrtSettings(settings_mode="file", settings_path=path)
    assert settings(ours, "/run/srt/bwrap") == {**CLOSED, "bwrapPath": "/run/srt/bwrap"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": {"allowedDomains": ["a.com"]}}, "network.allowedDomains"),
        ({"network": {"allowAllUnixSockets": True}}, "network.allowAllUnixSockets"),
        ({"network": {"httpProxyPort": 80}}, "network.httpProxyPort"),
        ({"network": {"mitmProxy": {"socketPath": "/x"}}}, "network.mitmProxy"),
        ({"network": {"newThing": True}}, "newThing"),
        ({"filesystem": {"disabled": True}}, "filesystem.disabled"),
        ({"filesystem": {"allowWrite": ["/"]}}, "filesystem.allowWrite"),
        ({"filesystem": {"allowWrite": ["/workspace/../etc"]}}, "filesystem.allowWrite"),
        ({"filesystem": {"allowWrite": ["/workspace2"]}}, "filesystem.allowWrite"),
        ({"filesystem": {"allowWrite": ["~/x"]}}, "filesystem.allowWrite"),
        ({"filesystem": {"allowWrite": [{"path": "/etc", "literal": True}]}}, "filesystem.allowWrite"),
        ({"filesystem": {"allowWrite": None}}, "filesystem.allowWrite"),
        ({"enableWeakerNestedSandbox": True}, "enableWeakerNestedSandbox"),
        ({"allowNestedUserNamespaces": True}, "allowNestedUserNamespaces"),
        ({"bwrapPath": "/tmp/x"}, "bwrapPath"),
        ({"credentials": {"files": [1]}}, "credentials"),
        ({"network": [1]}, "network must be an object"),
        ({"seccompp": 1}, "seccompp"),
    ],
)
def test_a_file_that_is_wider_than_policy_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        read_file(written(tmp_path, **changes))
    assert refused.value.field == "srt.settings_path"


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "srt.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="settings_path"):
        read_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(tmp_path / "none")
    with pytest.raises(InvalidInput, match=r"srt\.settings_path"):
        SrtSettings(settings_mode="file")


def test_the_tables_of_commonground_reach_the_backend(file: Path, tmp_path: Path) -> None:
    file.write_text(
        f'[skills]\nmode = "local"\nexecutor = "srt"\nlocal_root = "{tmp_path}/runs"\ncache_root = "{tmp_path}/cache"\n'
        '[srt]\ncommand = "/opt/srt"\nsettings_mode = "generated"\nignore_violations = { "*" = ["/x"] }\n'
        "enable_weaker_nested_sandbox = true\n"
        '[srt.filesystem]\ndeny_read = ["/etc/ssl"]\ndeny_write = ["/workspace/a"]\nallow_write = ["/data"]\n'
    )
    loaded = load_settings()
    assert loaded.policy.isolation == "srt"
    ours = loaded.srt
    assert (ours.command, ours.local_root, ours.cache_root) == ("/opt/srt", tmp_path / "runs", tmp_path / "cache")
    assert (ours.deny_read, ours.deny_write) == (("/etc/ssl",), ("/workspace/a",))
    assert ours.ignore_violations == {"*": ["/x"]}
    told = sorted(note.split(" has no effect")[0] for note in loaded.notes)
    assert told == ["srt.enable_weaker_nested_sandbox", "srt.filesystem.allow_write"]


def test_another_executor_tells_that_its_table_has_no_effect(file: Path) -> None:
    file.write_text('[srt.filesystem]\ndeny_read = ["/etc/ssl"]\n')
    loaded = load_settings()
    assert loaded.srt.deny_read == ()
    assert [note for note in loaded.notes if note.startswith("srt.filesystem.deny_read has no effect")]
