"""list_skills, describe_skill, read_skill_file, the guide (skills-protocol §3, §7)."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import FileNotFound, InvalidInput, SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import Needs, SkillFile, SkillKind
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"] for row in page["skills"]]


async def test_rows_are_sorted_by_code_points_with_the_latest_version(rig: Rig) -> None:
    for name in ("b.x", "a.z", "B.x", "a.y"):
        rig.skills.add(a_skill(name))
    rig.skills.add(a_skill("a.y", version="2.0.0"))
    page = await rig.call("list_skills")
    assert page["skills"][1] == {"name": "a.y", "version": "2.0.0"}
    assert names(page) == ["B.x", "a.y", "a.z", "b.x"]
    assert page["next_cursor"] is None


async def test_summary_adds_fields(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", kind=SkillKind.INSTRUCTION))
    [row] = (await rig.call("list_skills", detail="summary"))["skills"]
    assert row == {
        "name": "a.b",
        "version": "1.0.0",
        "description": "The skill a.b",
        "namespace": "a",
        "kind": "instruction",
        "tags": [],
        "short_description": "",
        "format": "skills-protocol",
    }


@pytest.mark.parametrize(
    ("namespace", "found"),
    [("sales", ["sales", "sales.x", "sales.x.y"]), ("sales.x", ["sales.x", "sales.x.y"]), ("none", []), ("sal", [])],
)
async def test_a_namespace_ends_at_a_dot(rig: Rig, namespace: str, found: list[str]) -> None:
    for name in ("sales", "sales.x", "sales.x.y", "salesforce.x", "sales-x"):
        rig.skills.add(a_skill(name))
    assert names(await rig.call("list_skills", namespace=namespace)) == found


async def test_pages_give_everything_once(rig: Rig) -> None:
    for number in range(7):
        rig.skills.add(a_skill(f"s.n{number}"))
    seen, cursor = [], None
    while True:
        page = await rig.call("list_skills", limit=3, cursor=cursor)
        seen += names(page)
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"s.n{number}" for number in range(7)]


async def test_forged_and_stale_cursors_are_refused(rig: Rig) -> None:
    for number in range(3):
        rig.skills.add(a_skill(f"s.n{number}"))
    cursor = (await rig.call("list_skills", limit=1))["next_cursor"]
    forged = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    for bad in (forged, "", "x", "é", cursor + "A"):
        with pytest.raises(InvalidInput, match="cursor"):
            await rig.call("list_skills", cursor=bad)
    rig.skills.add(a_skill("s.new"))
    with pytest.raises(InvalidInput, match="cursor"):
        await rig.call("list_skills", cursor=cursor)


async def test_skills_that_the_caller_may_not_use_are_left_out(rig: Rig) -> None:
    for name in ("public.a", "private.a", "public.b"):
        rig.skills.add(a_skill(name))
    caller = Principal("p", skills=("public.*",))
    assert names(await rig.call("list_skills", caller, limit=1)) == ["public.a"]
    assert names(await rig.call("list_skills", caller)) == ["public.a", "public.b"]
    for method, more in (("describe_skill", {}), ("read_skill_file", {"path": "x"})):
        with pytest.raises(SkillNotFound):
            await rig.call(method, caller, name="private.a", **more)


async def test_pages_go_on_over_skills_that_the_caller_may_not_use(rig: Rig) -> None:
    for number in range(1300):
        rig.skills.add(a_skill(f"private.n{number:04}"))
    for name in ("a.first", "private.n0600.mine", "z.last"):
        rig.skills.add(a_skill(name))
    caller = Principal("p", skills=("a.*", "*.mine", "z.*"))
    page = await rig.call("list_skills", caller, limit=2)
    assert names(page) == ["a.first", "private.n0600.mine"]
    page = await rig.call("list_skills", caller, limit=2, cursor=page["next_cursor"])
    assert (names(page), page["next_cursor"]) == (["z.last"], None)
    assert names(await rig.call("list_skills", caller, limit=3)) == ["a.first", "private.n0600.mine", "z.last"]


async def test_describe_gives_as_much_as_is_asked_for(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("---\nname: x\n---\n# Body\n")
    file = SkillFile("SKILL.md", 5, "abc")
    rig.skills.add(a_skill("a.b", version="0.9.0"))
    rig.skills.add(a_skill("a.b", tmp_path, body="é" * 2001, files=(file,)))
    manifest = (await rig.call("describe_skill", name="a.b", detail="manifest"))["skill"]
    assert set(manifest) == {"name", "version", "versions", "kind", "namespace", "format", "manifest"}
    assert manifest["versions"] == ["1.0.0", "0.9.0"]
    summary = (await rig.call("describe_skill", name="a.b"))["skill"]
    assert summary["skill_md"] == "é" * 2000
    assert summary["skill_md_truncated"] is True
    assert summary["frontmatter"] == {"name": "a.b"}
    assert (summary["file_names"], summary["files_total"], "files" in summary) == (["SKILL.md"], 1, False)
    full = (await rig.call("describe_skill", name="a.b", detail="full"))["skill"]
    assert full["skill_md"] == "---\nname: x\n---\n# Body\n"
    assert full["files"] == [{"path": "SKILL.md", "size_bytes": 5, "sha256": "abc"}]
    for described in (summary, full):
        assert (described["directory"], described["import_name"]) == ("/skills/a.b", "skills.a.b")
    old = (await rig.call("describe_skill", name="a.b", version="0.9.0"))["skill"]
    assert (old["version"], old["skill_md_truncated"]) == ("0.9.0", False)
    with pytest.raises(SkillNotFound):
        await rig.call("describe_skill", name="a.b", version="3.0.0")


async def test_a_summary_names_some_files_and_says_how_many_there_are(rig: Rig) -> None:
    files = tuple(SkillFile(f"assets/{n:03}.txt", 1, "abc") for n in range(80))
    needs = Needs(dependencies=("pillow>=10",))
    rig.skills.add(a_skill("gif-maker", files=files, needs=needs))
    summary = (await rig.call("describe_skill", name="gif-maker"))["skill"]
    assert (summary["directory"], summary["import_name"]) == ("/skills/gif-maker", "skills.gif_maker")
    assert summary["dependencies"] == ["pillow>=10"]
    assert summary["file_names"] == [f"assets/{n:03}.txt" for n in range(50)]
    assert summary["files_total"] == 80


def with_files(rig: Rig, root: Path, **files: bytes) -> None:
    entries = []
    for name, data in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        entries.append(SkillFile(str(path.relative_to(root)), len(data), "x"))
    rig.skills.add(a_skill("a.b", root, files=tuple(entries)))


async def test_read_a_text_file(rig: Rig, tmp_path: Path) -> None:
    with_files(rig, tmp_path, code__main_dot_py="# é\n".encode())
    assert await rig.call("read_skill_file", name="a.b", path="./code//main.py") == {
        "name": "a.b",
        "version": "1.0.0",
        "path": "code/main.py",
        "content": "# é\n",
        "encoding": "utf-8",
        "mime_type": "text/x-python",
        "size_bytes": 5,
        "truncated": False,
        "next_offset": None,
    }


async def test_read_a_binary_file(rig: Rig, tmp_path: Path) -> None:
    data = bytes(range(256))
    with_files(rig, tmp_path, x_dot_bin=data, y=b"text with \0 in it")
    file = await rig.call("read_skill_file", name="a.b", path="x.bin")
    assert (file["encoding"], base64.b64decode(file["content"])) == ("base64", data)
    assert (await rig.call("read_skill_file", name="a.b", path="y"))["encoding"] == "base64"


async def test_read_in_pages_that_end_between_characters(rig: Rig, tmp_path: Path) -> None:
    text = "aé漢😀" * 20
    with_files(rig, tmp_path, x_dot_txt=text.encode())
    seen = ""
    offset: int | None = 0
    while offset is not None:
        page = await rig.call("read_skill_file", name="a.b", path="x.txt", offset=offset, max_bytes=7)
        assert page["encoding"] == "utf-8"
        seen += page["content"]
        offset = page["next_offset"]
        assert page["truncated"] is (offset is not None)
    assert seen == text


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\\b", "a\0b", "code/..", "\ud800"])
async def test_paths_that_could_leave_the_root(rig: Rig, tmp_path: Path, path: str) -> None:
    with_files(rig, tmp_path, x=b"1")
    with pytest.raises(InvalidInput, match="path: must"):
        await rig.call("read_skill_file", name="a.b", path=path)


async def test_a_link_out_of_the_root_is_refused(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    os.symlink(outside, root / "link")
    rig.skills.add(a_skill("a.b", root, files=(SkillFile("link", 6, "x"),)))
    with pytest.raises(InvalidInput, match="inside the skill's root"):
        await rig.call("read_skill_file", name="a.b", path="link")


async def test_a_file_that_is_not_there(rig: Rig, tmp_path: Path) -> None:
    with_files(rig, tmp_path, x=b"1")
    for path in ("nothing", "."):
        with pytest.raises(FileNotFound):
            await rig.call("read_skill_file", name="a.b", path=path)


async def test_the_guide_is_for_everybody_who_may_discover(rig: Rig) -> None:
    rig.skills.add(a_skill("skills.protocol.guide", kind=SkillKind.INSTRUCTION, body="\n# The guide\n"))
    nobody = Principal("p", skills=())
    assert await rig.call("load_skills_protocol_guide", nobody) == {"content": "# The guide\n"}
