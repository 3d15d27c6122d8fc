"""Requests for commands: paths part by part, variables, languages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput, UnsupportedLanguage
from skillyard.domain.work.command import MOST_TEXT, Output, from_params, from_stored

PLAIN: dict[str, Any] = {"command": "true", "language": "bash", "workdir": "skill"}
LONG = "/".join(["a" * 200] * 3)


def refused(**params: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        from_params(PLAIN | params)
    return caught.value


@pytest.mark.parametrize(
    ("workdir", "path", "kept"),
    [
        ("skill", "out.gif", "skill/out.gif"),
        ("skill", "./out.gif", "skill/out.gif"),
        (".", "skill/out.gif", "skill/out.gif"),
        ("data/x", "y/*.csv", "data/x/y/*.csv"),
        ("skill", "/workspace/data/a.csv", "data/a.csv"),
    ],
)
def test_paths_are_relative_to_the_working_directory(workdir: str, path: str, kept: str) -> None:
    assert from_params(PLAIN | {"workdir": workdir, "outputs": [{"path": path}]}).outputs[0].path == kept


ELSEWHERE = [
    "../x", "a/../../x", "..", "/etc/passwd", "/workspace/../etc", "/workspacex/a", "a//b", "a/./b", "a\\b", "a\0b",
    "a\nb", "\ud800", "x" * 256, LONG,
]  # fmt: skip


@pytest.mark.parametrize("path", ELSEWHERE)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    assert refused(outputs=[{"path": path}]).field == "outputs[0].path"
    assert refused(inputs=[{"artifact_id": "blob:1", "mount_path": path}]).field == "inputs[0].mount_path"
    assert refused(workdir=path).field == "workdir"
    if path != LONG:
        assert refused(outputs=[{"path": "a", "save_as": path}]).field == "outputs[0].save_as"


@pytest.mark.parametrize("paths", [("a", "./a"), ("a", "/workspace/skill/a"), ("a/b", "a"), ("a", "a/b/c")])
def test_inputs_that_collide_are_refused(paths: tuple[str, str]) -> None:
    inputs = [{"artifact_id": "blob:1", "mount_path": path} for path in paths]
    assert refused(inputs=inputs).field in ("inputs[0].mount_path", "inputs[1].mount_path")


def test_inputs_of_one_name_in_two_places_are_both_kept() -> None:
    inputs = [{"artifact_id": "blob:1", "mount_path": path} for path in ("a/data.csv", "b/data.csv")]
    made = from_params(PLAIN | {"inputs": inputs}).inputs
    assert [one.path for one in made] == ["skill/a/data.csv", "skill/b/data.csv"]


def test_inputs_are_no_patterns() -> None:
    assert refused(inputs=[{"artifact_id": "blob:1", "mount_path": "a*"}]).field == "inputs[0].mount_path"


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", 'A"; id; "', "A\n", "Ä", "x" * 129])
def test_names_of_variables_are_checked(name: str) -> None:
    assert refused(env={name: "value"}).field == "env"


def test_values_of_variables_are_any_text_without_nul() -> None:
    odd = {"A": "$(id) `id` \\ \" ' \n", "_b2": ""}
    assert from_params(PLAIN | {"env": odd}).env == odd
    assert refused(env={"A": "a\0b"}).field == "env.A"
    assert refused(env={"A": "\ud800"}).field == "env.A"
    assert refused(env={"A": "x" * 65_536}).field == "env"


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", "\ud800", "é" * (MOST_TEXT // 2 + 1)])
def test_commands_that_cannot_run_are_refused(text: str) -> None:
    assert refused(command=text).field == "command"


@pytest.mark.parametrize("language", ["node", "ruby", "JavaScript", ""])
def test_languages_that_are_not_there_are_refused_by_name(language: str) -> None:
    with pytest.raises(UnsupportedLanguage, match=language or "language") as caught:
        from_params(PLAIN | {"language": language})
    assert caught.value.details["supported"] == ["bash", "python", "javascript", "typescript"]


def test_save_as_names_a_file_or_the_directory_of_a_pattern() -> None:
    assert Output("skill/a/b.txt", "a/b.txt", "c.txt").filename("skill/a/b.txt") == "c.txt"
    assert Output("skill/a/b.txt", "a/b.txt").filename("skill/a/b.txt") == "b.txt"
    assert Output("skill/*.txt", "*.txt", "all/").filename("skill/b.txt") == "all/b.txt"
    assert refused(outputs=[{"path": "*.txt", "save_as": "one.txt"}]).field == "outputs[0].save_as"
    assert refused(outputs=[{"path": "a.txt", "save_as": "dir/"}]).field == "outputs[0].save_as"
    assert refused(outputs=[{"path": "a", "save_as": "x"}, {"path": "b", "save_as": "x"}]).field == "outputs"


def test_a_command_is_stored_whole() -> None:
    asked = {
        "env": {"A": "b"},
        "inputs": [{"artifact_id": "blob:1", "mount_path": "a"}],
        "outputs": [{"path": "*.txt", "save_as": "x/"}, {"path": "b"}],
    }
    command = from_params(PLAIN | asked)
    assert from_stored(json.loads(json.dumps(command.stored()))) == command
