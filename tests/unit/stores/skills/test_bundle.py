"""Bundles with a skill.toml on disk: what the manifest names, lines of findings, schemas, entrypoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.skill import Finding, Skill, SkillFormat, SkillKind
from skillyard.stores.skills.scaffold import new_skill
from skillyard.stores.skills.tree import Caps, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle, validate
from skillyard.stores.skills.validation.companions import complaint
from skillyard.stores.skills.validation.schema import NotJson, complaints, read_json
from skillyard.stores.skills.validation.toml import TomlRefused, line_at, read_toml
from tests.unit.stores.skills.skilldirs import MAIN, action, action_files, agent_skill, write


def found(directory: Path, profile: Any = "strict") -> list[tuple[str, str, int, str]]:
    return [(f.level, f.file, f.line, f.rule) for f in validate(directory, profile)]


def loaded(directory: Path) -> tuple[Skill, list[Finding]]:
    tree, _ = read_tree(directory, Caps())
    assert tree is not None
    skill, findings = check_bundle(Bundle(tree, Place.of(directory), directory, True))
    assert skill is not None, findings
    return skill, findings


def edited(directory: Path, **files: str) -> Path:
    """``toml`` is appended to skill.toml, ``head`` goes before its first table; the others are files."""
    manifest = directory / "skill.toml"
    text = files.pop("head", "") + manifest.read_text() + files.pop("toml", "")
    manifest.write_text(text)
    return write(directory, {name.replace("__", "/").replace("_", "."): text for name, text in files.items()})


def test_a_valid_skill_has_no_findings(tmp_path: Path) -> None:
    directory = action(tmp_path)
    assert validate(directory) == []
    assert validate(str(directory)) == []
    assert validate(directory / "SKILL.md") == []
    skill, _ = loaded(directory)
    assert (skill.name, skill.version, skill.namespace) == ("acme.text.count", "1.0.0", "acme")
    assert (skill.kind, skill.format) == (SkillKind.ACTION, SkillFormat.PROTOCOL)
    assert (skill.description, skill.body) == ("A skill", "Use it.\n")
    assert skill.runtime is not None
    assert (skill.runtime.entrypoint, skill.runtime.environment) == ("code/main.py", "base")


def test_files_that_every_skill_needs(tmp_path: Path) -> None:
    directory = action(tmp_path)
    (directory / "SKILL.md").unlink()
    assert found(directory) == [("error", "SKILL.md", 0, "required")]
    (directory / "skill.toml").unlink()
    assert found(directory) == [("error", "SKILL.md", 0, "required")]
    assert found(tmp_path / "none") == [("error", str(tmp_path / "none"), 0, "no-directory")]


def test_lines_lead_to_the_key(tmp_path: Path) -> None:
    toml = '\n[permissions]\nnetwork = [\n  "ok.com",\n  "http://no",\n]\n[limits]\nram = 1\n'
    directory = edited(action(tmp_path), head='namespace = "other"\n', toml=toml)
    assert [(f.line, f.rule) for f in validate(directory)] == [(1, "namespace"), (15, "network-host"), (18, "limit")]


def test_broken_toml_is_said_once_with_its_line(tmp_path: Path) -> None:
    directory = edited(action(tmp_path), toml="x = = 1\n")
    assert found(directory) == [("error", "skill.toml", 10, "toml")]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"a = 1\nb = 1\xff", 2),
        (b"a = 1\na = 2\n", 2),
        (b"a = [", 1),
        (b"a = " + b"[" * 100_000, 0),
        (b"a = " + b"1" * 100_000, 0),
        (b"a = 1\n" * 100_000, 0),
        (b"\xef\xbb\xbfa = 1", 1),
    ],
)
def test_hostile_toml(raw: bytes, line: int) -> None:
    with pytest.raises(TomlRefused) as caught:
        read_toml(raw)
    assert caught.value.line == line


def test_lines_of_keys() -> None:
    text = b'a = """\n[no]\nb = 1\n"""\n["x.y"]\n"q z" = 1\nd.e = 2\n[[t]]\nf = 1\n[u . v]\nw = {k = 1}\n'
    lines = read_toml(text).lines
    assert lines == {
        ("a",): 1,
        ("x.y",): 5,
        ("x.y", "q z"): 6,
        ("x.y", "d"): 7,
        ("x.y", "d", "e"): 7,
        ("t",): 8,
        ("t", 0): 8,
        ("t", 0, "f"): 9,
        ("u", "v"): 10,
        ("u", "v", "w"): 11,
        ("u", "v", "w", "k"): 11,
    }
    assert line_at(lines, ("u", "v", "w", "k", 0)) == 11
    assert line_at(lines, ("none",)) == 0


@pytest.mark.parametrize(
    ("main", "rule", "line"),
    [
        (MAIN, None, 0),
        ("async def main(args): ...", None, 0),
        ("def main(*args): ...", None, 0),
        ("def main(args, more=1, *, other=2): ...", None, 0),
        ("@wrap\ndef main(): ...", None, 0),
        ("def main(city, days, *, unit): ...", None, 0),
        ("def main(): ...\ndef main(args): ...", None, 0),
        ("# coding: latin-1\nx = '\xe9'\ndef main(args): ...".encode("latin-1"), None, 0),
        ("x = '\\d'\ndef main(args): ...", None, 0),
        ("def other(args): ...", "export-missing", 0),
        ("main = lambda args: args", "export-missing", 0),
        ("if True:\n    def main(args): ...", "export-missing", 0),
        ("class A:\n    def main(args): ...", "export-missing", 0),
        ("", "export-missing", 0),
        ("def main(args:\n    pass", "entrypoint-syntax", 1),
        (b"def main(args): ...\0", "entrypoint-syntax", 0),
        (b"x = '\xff'\ndef main(args): ...", "entrypoint-syntax", 1),
        ("x = " + "(" * 5000, "entrypoint-syntax", None),
        ("x = " + "-" * 100_000 + "1", "entrypoint-syntax", None),
        ("x = 1" + "+1" * 70_000 + "\ndef main(args): ...", "entrypoint-syntax", None),
        ("x = a" + ".a" * 70_000 + "\ndef main(args): ...", "entrypoint-syntax", None),
        ("x = a" + ".a" * 100_000 + "\ndef main(args): ...", "entrypoint-size", None),
        ("#" * 1_100_000, "entrypoint-size", 0),
    ],
)
def test_the_export_is_found_without_running(main: str | bytes, rule: str | None, line: int | None) -> None:
    wrong = complaint(main if isinstance(main, bytes) else main.encode(), "main")
    assert (wrong[1] if wrong else None) == rule
    assert wrong is None or line is None or wrong[0] == line


def test_nothing_of_a_skill_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')\n{MAIN}"
    directory = write(action(tmp_path, main=code), {"conftest.py": code, "code/__init__.py": code})
    assert validate(directory) == []
    assert not mark.exists()


def test_the_entrypoint_is_a_file_of_the_skill(tmp_path: Path) -> None:
    directory = action(tmp_path)
    (directory / "code" / "main.py").unlink()
    assert found(directory) == [("error", "skill.toml", 8, "entrypoint-missing")]
    (directory / "code" / "main.py").symlink_to("/etc/hostname")
    assert found(directory) == [("error", "code/main.py", 0, "link-outside")]


def test_places(tmp_path: Path) -> None:
    assert found(action(tmp_path).rename(tmp_path / "other")) == [("warning", "skill.toml", 1, "directory-name")]
    versioned = tmp_path / "acme.text.count"
    assert found(write(versioned / "1.0.0", action_files())) == []
    assert found(write(versioned / "1.0.1", action_files())) == [("error", "skill.toml", 2, "directory-version")]
    assert found(versioned / "1.0.1", "lenient") == [("warning", "skill.toml", 2, "directory-version")]


def test_skill_md_beside_a_manifest(tmp_path: Path) -> None:
    directory = action(tmp_path)
    title = "---\nname: Salesforce Lead Sync\nshort_description: Short\ntags: [a, b]\n---\nText\n"
    write(directory, {"SKILL.md": title})
    assert found(directory) == [("warning", "SKILL.md", 2, "front-matter-name")]
    skill, findings = loaded(directory)
    assert (skill.description, skill.short_description, skill.tags) == ("A skill", "Short", ("a", "b"))
    assert findings == []
    write(directory, {"SKILL.md": "# No front matter\n"})
    assert found(directory) == [("error", "SKILL.md", 1, "front-matter")]
    assert loaded(directory)[0].body == "# No front matter\n"
    write(directory, {"SKILL.md": "---\ntags: x\nname: [a]\n---\n"})
    assert [rule for _, _, _, rule in found(directory)] == ["type", "type"]


def test_schemas_inline_and_in_files(tmp_path: Path) -> None:
    toml = '[inputs]\ntype = "object"\n[inputs.properties.n]\ntype = "integer"\n'
    head = 'outputs_schema = "resources/out.json"\n'
    directory = edited(action(tmp_path), toml=toml, head=head, resources__out_json='{"type": "object"}')
    assert validate(directory) == []
    skill, _ = loaded(directory)
    assert skill.inputs_schema == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert skill.outputs_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "schema-missing"),
        ("[]", "schema-json"),
        ("{", "schema-json"),
        ('{"type": "objekt"}', "schema"),
        ('{"type": "string"}', "schema-type"),
        ('{"$ref": "https://x.org/a.json"}', "schema-reference"),
    ],
)
def test_schema_files(tmp_path: Path, text: str | None, rule: str) -> None:
    directory = edited(action(tmp_path), head='inputs_schema = "in.json"\n')
    if text is not None:
        write(directory, {"in.json": text})
    file, line = ("skill.toml", 1) if text is None else ("in.json", 0 if text == "[]" else 1)
    assert found(directory) == [("error", file, line, rule)]


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({}, []),
        ({"type": ["object", "null"]}, []),
        ({"properties": {"pattern": {"type": "string"}, "$ref": {"const": {"$ref": "x"}}}}, []),
        ({"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}, []),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, ["schema-dialect"]),
        ({"required": "a"}, ["schema"]),
        ({"name": "string"}, ["schema-keyword"]),
        ({"properties": {"a": {"items": {"$ref": "file:///etc/passwd"}}}}, ["schema-reference"]),
        ({"properties": {"a": {"pattern": "("}}}, ["schema-pattern"]),
        ({"patternProperties": {"(": {}}}, ["schema-pattern"]),
        ({"minProperties": -1}, ["schema"]),
    ],
)
def test_schema_rules(schema: dict[str, Any], found: list[str]) -> None:
    assert [complaint.rule for complaint in complaints(schema)] == found


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"not": schema}
    assert [complaint.rule for complaint in complaints(schema)] == ["schema-depth"]


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a": NaN}', b"\xff", b'{"a": "\\ud800"}', b" " * 300_000, b""])
def test_hostile_json(raw: bytes) -> None:
    with pytest.raises(NotJson):
        read_json(raw)


def test_requirements_join_the_declared_dependencies(tmp_path: Path) -> None:
    text = "# header\nnumpy>=2 \\\n  --hash=sha256:aa\n\nhttpx[http2] ; python_version>'3' # why\nnumpy >=2\n"
    directory = edited(action(tmp_path), toml='[dependencies]\nrich = ">=14"\n', code__requirements_txt=text)
    assert validate(directory) == []
    skill, _ = loaded(directory)
    assert skill.needs.dependencies == ("rich>=14", "numpy>=2", "httpx[http2] ; python_version>'3'", "numpy >=2")


def test_requirements_that_are_none(tmp_path: Path) -> None:
    text = "ok\n-r other.txt\n--index-url https://evil\n./local\na @ https://x\n"
    directory = edited(action(tmp_path), code__requirements_txt=text)
    assert found(directory) == [("error", "code/requirements.txt", line, "requirement") for line in (2, 3, 4, 5)]
    skill, _ = loaded(directory)
    assert skill.needs.dependencies[1] == "-r other.txt"


def test_profile_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^profile: must be 'strict' or 'lenient'"):
        validate(tmp_path, "loose")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["acme.text.count", "a.b", "x.true", "a.b1", "acme.null"])
@pytest.mark.parametrize("kind", ["action", "instruction"])
def test_a_new_skill_is_valid(tmp_path: Path, name: str, kind: Any) -> None:
    files = new_skill(tmp_path / name, name, kind)
    assert validate(tmp_path / name) == []
    skill, _ = loaded(tmp_path / name)
    assert (skill.name, skill.kind, len(skill.files)) == (name, kind, len(files))


def test_a_new_skill_in_an_odd_directory(tmp_path: Path) -> None:
    new_skill(tmp_path / "My Skill", "acme.text.count")
    assert found(tmp_path / "My Skill") == [("warning", "skill.toml", 1, "directory-name")]


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        *((name, "action", "name") for name in ("Acme", "a.import", "../x", "", "skills.protocol.guide")),
        ("a.b", "tool", "kind"),
    ],
)
def test_no_new_skill(tmp_path: Path, name: str, kind: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        new_skill(tmp_path / "new", name, kind)
    assert not (tmp_path / "new").exists()


def test_a_new_skill_overwrites_nothing(tmp_path: Path) -> None:
    directory = agent_skill(tmp_path)
    before = (directory / "SKILL.md").read_bytes()
    with pytest.raises(InvalidInput, match=r"^path: must be a directory that is absent or empty"):
        new_skill(directory, "a.b")
    assert (directory / "SKILL.md").read_bytes() == before
    assert json.dumps([f.name for f in directory.iterdir()]) == '["SKILL.md"]'
