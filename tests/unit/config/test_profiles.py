"""Profiles in the settings, and the YAML files that hold their allow-lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from skillyard.config.profiles import MOST_TOOLS, ProfileFile, ProfileSettings, bound, parse_profile
from skillyard.config.settings import Settings, load_settings
from skillyard.domain.errors import Forbidden, InvalidInput
from skillyard.domain.principal import Principal, Scope

SEED = """allowed_tools:
  - "skills.load"
  - "skills.activate"
  - "skills.run_cmd"
  - "skills.run_cmd_async"
  - "skills.start_job"
  - "skills.task_status"
  - "skills.task_watch"
"""
SEVEN = ("load", "activate", "run_cmd", "run_cmd_async", "start_job", "task_status", "task_watch")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in os.environ:
        if name.startswith(("SKILLYARD_", "SKILLFLAW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SKILLYARD_DATA_DIR", str(tmp_path))


def configured(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "config.toml").write_text(text)
    return load_settings()


def test_a_profile_of_the_settings(tmp_path: Path) -> None:
    settings = configured(
        tmp_path,
        '[profiles.reader]\nallowed_tools = ["skills.load", "list_*"]\nskills = ["sales.*"]\nnetwork = "none"\n'
        'isolation = "native"\n[profiles.reader.limits]\nmemory_mb = 64\n',
    )
    reader = settings.profiles["reader"]
    assert (reader.tools, reader.skills, reader.network) == (("skills.load", "list_*"), ("sales.*",), ())
    assert (reader.limits.most, reader.isolation) == ({"memory_mb": 64}, "native")
    assert load_settings().profiles["reader"].network == ()


def test_the_file_of_the_seed_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "skill_orchestrator_agent.yaml"
    file.write_text(f"name: orchestrator\ntags: [a]\n{SEED}")
    settings = configured(tmp_path, f'[profiles.orchestrator]\nfile = "{file}"\n')
    assert settings.profiles["orchestrator"].tools == tuple(f"skills.{name}" for name in SEVEN)
    assert [note for note in settings.notes if "profiles" in note] == [
        f"profiles.orchestrator: these keys of {file} have no effect here: name, tags"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.x]\n", "profiles.x: .*allows no tool"),
        ('[profiles.x]\nallowed_tools = ["a b"]', "profiles.x: .*allowed_tools must be names or patterns"),
        ('[profiles.x]\nallowed_tools = "skills.load"', r"profiles.x.allowed_tools: must be a list"),
        ('[profiles."a b"]\nallowed_tools = ["*"]', "profiles: must be a letter or digit"),
        ('[profiles.x]\nallowed_tools = ["*"]\nskills = ["a b"]', "profiles.x.skills: .*patterns of skill names"),
        ('[profiles.x]\nallowed_tools = ["*"]\ntools = []', "profiles.x.tools: is not a setting"),
        ('[profiles.x]\nallowed_tools = ["*"]\nisolation = "gvisor"', "profiles.x.isolation: must be one that policy"),
        ('[profiles.x]\nallowed_tools = ["*"]\nfile = "/none.yaml"', "profiles.x: .*names a file and allowed_tools"),
        ('[profiles.x]\nfile = "/none.yaml"', "profiles.x: .*/none.yaml cannot be read"),
        ('[profiles.x]\nallowed_tools = ["*"]\n[profiles.x.limits]\npids = 1', "profiles.x.limits.pids: "),
        ('[profiles.x]\nallowed_tools = ["*"]\nnetwork = ["a b"]', r"network.*\[0\]"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        configured(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must have a list 'allowed_tools'"),
        ("[]", "must have a list"),
        ("allowed_tools: skills.load", "must have a list"),
        ("allowed_tools: []", "at least one"),
        ("allowed_tools: [1]", r"must be names or patterns of methods.*got 1"),
        ("allowed_tools: [[a]]", "must be names or patterns"),
        ("allowed_tools: [a b]", "must be names or patterns"),
        (f"allowed_tools: [{'a, ' * (MOST_TOOLS + 1)}]", f"at most {MOST_TOOLS}"),
        ("allowed_tools: [a]\nallowed_tools: [b]", "line 2 names the key 'allowed_tools' twice"),
        ("x: &x [a]\nallowed_tools: *x", "line 1 must not use anchors"),
        ("allowed_tools: !!python/object/apply:os.system [x]", "must not use tags"),
        ("allowed_tools: [a", "line 1 is not valid YAML"),
        ("a" * 70_000, "at most 65536 bytes"),
    ],
)
def test_what_is_not_a_profile_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_profile(text)


TOOLS = st.lists(st.from_regex(r"[!-~]{1,128}", fullmatch=True), min_size=1, max_size=20)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)


@given(tools=TOOLS, others=st.dictionaries(st.sampled_from(["name", "tags", "llm"]), VALUES, max_size=3))
def test_any_list_of_names_is_read_as_it_was_written(tools: list[str], others: dict[str, object]) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    for style in ('"', "'"):
        text = yaml.dump({**others, "allowed_tools": tools}, Dumper=NoAliases, default_style=style)
        text = text.replace("!!null", "").replace("!!bool", "").replace("!!int", "")
        assert parse_profile(text) == ProfileFile(tuple(tools), tuple(sorted(others)))


@given(st.text(max_size=200) | st.text(alphabet='allowed_tools:[]{}"- \n&*!|>\t', max_size=60))
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    try:
        found = parse_profile(text)
    except ValueError:
        return
    assert found.tools
    assert all(tool.isascii() and tool.isprintable() and " " not in tool for tool in found.tools)


@given(tools=TOOLS, tool=st.from_regex(r"[a-z._]{1,30}", fullmatch=True))
def test_a_profile_widens_nothing(tools: list[str], tool: str) -> None:
    profiles = {"p": ProfileSettings(allowed_tools=tuple(tools), skills=("sales.*",))}
    narrow = bound(profiles, Principal("ann", frozenset({Scope.EXECUTE}), ("sales.x", "hr.*"), profile="p"))
    assert narrow.scopes == {Scope.EXECUTE}
    assert [name for name in ("sales.x", "sales.y", "hr.x", tool) if narrow.may_use(name)] == ["sales.x"]
    if "*" not in "".join(tools) and "?" not in "".join(tools) and "[" not in "".join(tools):
        assert narrow.may_call(tool) == (tool in tools or tool == "rpc.discover")


def test_a_principal_whose_profile_is_not_there_may_do_nothing() -> None:
    lost = bound({"other": ProfileSettings(allowed_tools=("*",))}, Principal("ann", profile="p"))
    assert not lost.may_use("a.b")
    for tool in ("rpc.discover", "skills.load"):
        with pytest.raises(Forbidden, match=rf"{tool}: the settings of this server lack the profile 'p'") as refused:
            lost.require_tool(tool)
        assert refused.value.details == {"profile": "p", "tool": tool}
