"""What is written is the same each time, and read back it is the same bundle, by us and by everybody else."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import SkillFile
from skillyard.stores.skills.archives import (
    Unpacked,
    packed_files,
    packed_tree,
    read_archive,
    tar_gz,
    write_zip,
)
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from tests.unit.stores.archives.trees import tree_of, trees

MIB = 1024 * 1024


def as_tar_gz(tree: Tree, prefix: str = "") -> bytes:
    return b"".join(tar_gz(packed_tree(tree), prefix=prefix))


def as_zip(tree: Tree, prefix: str = "") -> bytes:
    archive = io.BytesIO()
    write_zip(packed_tree(tree), archive, prefix=prefix)
    return archive.getvalue()


FORMATS: tuple[Callable[..., bytes], ...] = (as_tar_gz, as_zip)


def read(raw: bytes) -> Unpacked:
    unpacked, findings = read_archive(io.BytesIO(raw))
    assert unpacked is not None, findings
    return unpacked


@pytest.mark.parametrize("write", FORMATS)
@given(tree=trees(), prefix=st.sampled_from(("", "my-skill", "é")))
def test_read_back_it_is_the_same(write: Callable[..., bytes], tree: Tree, prefix: str) -> None:
    raw = write(tree, prefix)
    assert raw == write(tree, prefix)
    unpacked = read(raw)
    assert unpacked.tree == tree
    assert unpacked.stripped == prefix


@given(tree=trees())
def test_others_read_the_same(tree: Tree) -> None:
    want = {path: (file.data, file.executable) for path, file in tree.files.items()}
    with tarfile.open(fileobj=io.BytesIO(as_tar_gz(tree))) as archive:
        members = archive.getmembers()
        found = {m.name: ((archive.extractfile(m) or io.BytesIO()).read(), bool(m.mode & 0o100)) for m in members}
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
        assert {m.mode for m in members} <= {0o644, 0o755}
    assert found == want
    with zipfile.ZipFile(io.BytesIO(as_zip(tree))) as made:
        infos = made.infolist()
        assert {i.filename: (made.read(i), bool(i.external_attr >> 16 & 0o100)) for i in infos} == want
        assert {i.date_time for i in infos} == {(1980, 1, 1, 0, 0, 0)}


def test_nothing_of_the_moment_is_written() -> None:
    raw = as_tar_gz(tree_of({"SKILL.md": b"x"}))
    assert raw[:8] == b"\x1f\x8b\x08\x00" + bytes(4)  # RFC 1952: no name, no time
    assert len(gzip.decompress(raw)) == 512 + 512 + 1024


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("data", [bytes(15 * MIB), b"ab" * (5 * MIB)])
def test_what_would_look_like_a_bomb_is_not_compressed(write: Callable[..., bytes], data: bytes) -> None:
    tree = tree_of({"SKILL.md": b"x", "zeros": data})
    raw = write(tree)
    assert len(raw) > len(data)
    assert read(raw).tree.digest == tree.digest


@pytest.mark.parametrize("write", FORMATS)
def test_the_largest_bundle(write: Callable[..., bytes]) -> None:
    caps = Caps()
    files = {f"d{i % 7}/{i}": bytes([i % 256]) * 100 for i in range(caps.files - 2)}
    deep = "/".join(["d"] * caps.depth) + "/SKILL.md"
    tree = tree_of({**files, deep: b"x", "SKILL.md": bytes(range(256)) * ((caps.bytes - 60_000) // 256)})
    assert read(write(tree)).tree == tree
    assert read(write(tree, "prefix")).tree == tree


def test_a_snapshot_is_written_file_by_file_and_only_as_it_was_stored(tmp_path: Path) -> None:
    tree = tree_of({"SKILL.md": b"x", "code/run": b"y"}, frozenset({"code/run"}))
    home = Snapshots(tmp_path / "snapshots").store(tree)
    files = [SkillFile(path, len(file.data), file.sha256) for path, file in tree.files.items()]
    assert b"".join(tar_gz(packed_files(home, reversed(files)))) == as_tar_gz(tree)
    (home / "SKILL.md").chmod(0o644)
    (home / "SKILL.md").write_bytes(b"z")
    with pytest.raises(StoreFault, match=r"SKILL\.md"):
        b"".join(tar_gz(packed_files(home, files)))


def test_what_macos_puts_into_archives_is_left_out() -> None:
    files = {"my-skill/SKILL.md": b"x", "my-skill/._SKILL.md": b"y", "__MACOSX/my-skill/._SKILL.md": b"y"}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    unpacked = read(out.getvalue())
    assert (list(unpacked.tree.files), unpacked.stripped) == (["SKILL.md"], "my-skill")


@pytest.mark.parametrize("name", [".git/hooks/x", "a/.GIT/config", "\uff0egit/x", ".Env", "__PYCACHE__/x", "a.pyc"])
def test_what_is_never_part_of_a_skill_is_left_out_however_it_is_spelled(name: str) -> None:
    unpacked, findings = read_archive(io.BytesIO(as_zip(tree_of({"SKILL.md": b"x", name: b"y"}))))
    assert unpacked is not None
    assert list(unpacked.tree.files) == ["SKILL.md"]
    assert [finding.rule for finding in findings] == ["archive-dropped"]


TOOLS = {
    "tar, a directory": ("tar czf out my-skill", "my-skill"),
    "tar, its content": ("tar cf out -C my-skill .", ""),
    "GNU tar": ("tar cf out --format=gnu my-skill", "my-skill"),
    "pax": ("tar cf out --format=posix my-skill", "my-skill"),
    "zip": ("zip -qr out.zip my-skill && mv out.zip out", "my-skill"),
    "zip into a pipe": ("zip -qr - my-skill | cat > out", "my-skill"),
    "zip, its content": ("cd my-skill && zip -qr ../out.zip . && mv ../out.zip ../out", ""),
    "busybox": ("busybox tar czf out my-skill", "my-skill"),
    "bsdtar": ("bsdtar czf out my-skill", "my-skill"),
    "7z": ("7z a -tzip out.zip my-skill && mv out.zip out", "my-skill"),
    "Python's zipfile": (f"{sys.executable} -m zipfile -c out my-skill", "my-skill"),
    "Python's tarfile": (f"{sys.executable} -m tarfile -c out.tgz my-skill && mv out.tgz out", "my-skill"),
    "git archive": ("{git} archive -o out.zip HEAD && mv out.zip ../out", ""),
    "git archive, a prefix": ("{git} archive --prefix=p/ -o out.tar.gz HEAD && mv out.tar.gz ../out", "p"),
}
_GIT = (
    "cd my-skill && git init -q . && git add -A && "
    "git -c user.email=a@example.com -c user.name=a -c commit.gpgsign=false commit -qm x && git"
)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_tools_make_is_read(tool: str, tmp_path: Path) -> None:
    command, stripped = TOOLS[tool]
    program = "git" if "{git}" in command else command.removeprefix("cd my-skill && ").split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    home = tmp_path / "my-skill"
    long = "n" * 120
    for path, text in {"SKILL.md": "hello", "code/é.py": "x" * 2000, f"{long}/{long}": "y", "code/run": "z"}.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    (home / "code" / "run").chmod(0o755)
    (home / "empty").mkdir()
    want, _ = read_tree(home, Caps())
    assert want is not None
    (home / "__pycache__").mkdir()
    (home / "__pycache__" / "x.pyc").write_text("x")
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "HOME": str(tmp_path)}
    subprocess.run(
        command.format(git=_GIT), shell=True, cwd=tmp_path, check=True, capture_output=True, env=env, timeout=60
    )
    unpacked, findings = read_archive(io.BytesIO((tmp_path / "out").read_bytes()))
    assert unpacked is not None, findings
    assert (unpacked.tree.digest, unpacked.stripped) == (want.digest, stripped)
    assert {finding.level for finding in findings} <= {"note"}
    assert "archive-dropped" in {finding.rule for finding in findings}
