"""One bundle out of a directory, an archive or a git checkout; nothing of it is executed, nothing besides it read."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
from pathlib import Path

import pytest

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.archives import ArchiveLimits, Unpacked
from skillyard.stores.skills.sources import read_source
from skillyard.stores.skills.tree import Caps
from tests.unit.stores.sources.repository import FILES, git, repository, write

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
WORDS = {
    path.removeprefix("skills/words/"): text.encode() for path, text in FILES.items() if path.startswith("skills/words")
}


def read(source: Path, inner: str = "", limits: ArchiveLimits | None = None) -> tuple[Unpacked, list[Finding]]:
    unpacked, findings = read_source(source, inner, limits)
    assert unpacked is not None, findings
    return unpacked, findings


def files(source: Path, inner: str = "") -> dict[str, bytes]:
    return {path: file.data for path, file in read(source, inner)[0].tree.files.items()}


def rules(source: Path, inner: str = "", limits: ArchiveLimits | None = None) -> list[str]:
    unpacked, findings = read_source(source, inner, limits)
    assert unpacked is None
    return [finding.rule for finding in findings if finding.level == "error"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


@NEEDS_GIT
class TestCheckout:
    def test_the_tracked_files_as_they_are_now(self, home: Path) -> None:
        write(home, {"skills/words/untracked": "secret", "skills/words/SKILL.md": "changed", ".gitignore": "x"})
        (home / "skills/words/x").write_text("ignored")
        unpacked, _ = read(home, "skills/words")
        assert {path: file.data for path, file in unpacked.tree.files.items()} == {**WORDS, "SKILL.md": b"changed"}
        assert [path for path, file in unpacked.tree.files.items() if file.executable] == ["code/run.sh"]

    def test_what_is_only_added_counts(self, tmp_path: Path) -> None:
        home = repository(tmp_path / "r", {"SKILL.md": "x"}, commit=False)
        assert files(home) == {"SKILL.md": b"x"}

    def test_the_same_as_of_the_directory_it_is(self, home: Path) -> None:
        assert read(home, "skills/words")[0].tree == read(home / "skills/words")[0].tree

    def test_several_skills_want_a_choice(self, home: Path) -> None:
        unpacked, findings = read_source(home)
        assert unpacked is None
        assert [(f.rule, "skills/other, skills/words" in f.message) for f in findings] == [("source-choice", True)]

    @pytest.mark.parametrize("inner", ["..", "../x", "/etc", "skills/../../x"])
    def test_outside_is_refused(self, home: Path, inner: str) -> None:
        assert rules(home, inner) == ["archive-traversal"]

    def test_nothing_tracked_is_said(self, home: Path) -> None:
        (home / "empty").mkdir()
        assert rules(home, "empty") == ["git-empty"]

    def test_what_is_gone_or_a_module_is_noted(self, home: Path, tmp_path: Path) -> None:
        module = repository(tmp_path / "module", {"x": "y"})
        git(home, "submodule", "add", "-q", str(module), "skills/words/module")
        (home / "skills/words/code/run.sh").unlink()
        unpacked, findings = read(home, "skills/words")
        assert "code/run.sh" not in unpacked.tree.files
        assert not any(path.startswith("module/") for path in unpacked.tree.files)
        assert {f.rule for f in findings} == {"git-missing", "git-submodule"}

    def test_a_module_is_a_checkout_itself(self, home: Path, tmp_path: Path) -> None:
        module = repository(tmp_path / "module", {"SKILL.md": "y"})
        git(home, "submodule", "add", "-q", str(module), "module")
        assert (home / "module/.git").is_file()
        (home / "module/untracked").write_text("x")
        assert files(home / "module") == {"SKILL.md": b"y"}

    def test_links_inside_are_what_they_lead_to(self, home: Path) -> None:
        words = home / "skills/words"
        (words / "copy.md").symlink_to("SKILL.md")
        (words / "again.md").symlink_to("copy.md")
        (words / "lib").symlink_to("code")
        git(home, "add", "-A")
        found = files(home, "skills/words")
        assert found == {
            **WORDS,
            "copy.md": WORDS["SKILL.md"],
            "again.md": WORDS["SKILL.md"],
            "lib/run.sh": WORDS["code/run.sh"],
        }

    @pytest.mark.parametrize(
        "target",
        [
            "/etc/passwd",
            "/etc",
            "../other/SKILL.md",
            "../../../secret",
            "untracked",
            "nothing",
            "bad",
            ".",
            "..",
            "loop",
        ],
    )
    def test_links_that_lead_elsewhere_are_refused(self, home: Path, target: str) -> None:
        (home.parent / "secret").write_text("s")
        words = home / "skills/words"
        (words / "loop").symlink_to("bad")
        (words / "bad").symlink_to(target)
        git(home, "add", "-A")
        (words / "untracked").write_text("secret")
        assert rules(home, "skills/words") == ["git-link"]

    def test_what_is_another_thing_on_disk_is_refused_and_holds_nobody_up(self, home: Path) -> None:
        words = home / "skills/words"
        (words / "SKILL.md").unlink()
        (words / "SKILL.md").symlink_to("/etc/passwd")
        assert rules(home, "skills/words") == ["unreadable"]
        (words / "SKILL.md").unlink()
        os.mkfifo(words / "SKILL.md")
        assert rules(home, "skills/words") == ["archive-special"]
        (words / "SKILL.md").unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(words, os.O_RDONLY)
            listener.bind(f"/proc/self/fd/{here}/SKILL.md")
            os.close(here)
            assert rules(home, "skills/words") == ["unreadable"]

    def test_a_directory_that_became_a_link_is_not_followed(self, home: Path) -> None:
        outside = home.parent / "outside"
        shutil.move(home / "skills/words/code", outside)
        (home / "skills/words/code").symlink_to(outside)
        assert rules(home, "skills/words") == ["unreadable"]
        shutil.move(home / "skills", home.parent / "skills")
        (home / "skills").symlink_to(home.parent / "skills")
        with pytest.raises(OSError, match="directory"):
            read_source(home, "skills/words")

    def test_caps(self, home: Path) -> None:
        assert rules(home, "skills/words", ArchiveLimits(Caps(files=2))) == ["archive-files"]
        assert rules(home, "skills/words", ArchiveLimits(Caps(bytes=50))) == ["archive-bytes"]
        assert rules(home, "skills/words", ArchiveLimits(entries=2)) == ["archive-entries"]
        with (home / "skills/words/SKILL.md").open("wb") as large:
            large.truncate(10**12)
        assert rules(home, "skills/words") == ["archive-bytes"]

    def test_a_repository_that_wants_programs_run_runs_none(self, tmp_path: Path) -> None:
        """Each of these is what git would run; that it would is shown below."""
        told = tmp_path / "told"
        home = repository(tmp_path / "repo", {"SKILL.md": "x", "data": "y", ".gitattributes": "* filter=evil\n"})
        settings = {
            "core.fsmonitor": f"echo fsmonitor >> {told}; echo",
            "core.sshCommand": f"echo ssh >> {told}",
            "core.pager": f"echo pager >> {told}",
            "core.editor": f"echo editor >> {told}",
            "core.hooksPath": str(tmp_path / "hooks"),
            "filter.evil.clean": f"echo clean >> {told}; cat",
            "filter.evil.smudge": f"echo smudge >> {told}; cat",
            "filter.evil.process": f"echo process >> {told}; cat",
            "diff.external": f"echo diff >> {told}",
            "alias.ls-files": f"!echo alias >> {told}",
            "include.path": str(tmp_path / "included"),
        }
        hook = tmp_path / "hooks/post-index-change"
        write(
            tmp_path,
            {
                "included": f'[core]\n\tfsmonitor = "echo included >> {told}; echo"\n',
                "hooks/post-index-change": f"#!/bin/sh\necho hook >> {told}\n",
            },
        )
        hook.chmod(0o755)
        for name, value in settings.items():
            git(home, "config", name, value)
        told.unlink(missing_ok=True)
        assert files(home) == {"SKILL.md": b"x", "data": b"y", ".gitattributes": b"* filter=evil\n"}
        assert not told.exists()
        (home / "data").write_text("z")
        git(home, "status", check=False)
        assert told.exists()


class TestDirectory:
    def test_all_of_it_with_names_that_travel(self, tmp_path: Path) -> None:
        write(tmp_path, {"SKILL.md": "x", "sub/y": "z", "__pycache__/c": "x"})
        assert files(tmp_path) == {"SKILL.md": b"x", "sub/y": b"z"}
        write(tmp_path, {"skill.MD": "x", "con": "x"})
        assert sorted(rules(tmp_path)) == ["archive-collision", "archive-reserved-name"]

    def test_a_directory_within(self, tmp_path: Path) -> None:
        write(tmp_path, {"a/b/SKILL.md": "x"})
        assert files(tmp_path, "a/b/") == {"SKILL.md": b"x"}
        assert rules(tmp_path, "a/c") == ["no-directory"]
        (tmp_path / "out").symlink_to("/")
        assert rules(tmp_path, "out/etc") == ["no-directory"]

    def test_links_that_leave_are_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "skill", {"SKILL.md": "x"})
        write(tmp_path, {"secret": "x"})
        (tmp_path / "skill/x").symlink_to("../secret")
        assert rules(tmp_path / "skill") == ["link-outside"]

    def test_what_is_not_there_is_an_error_of_the_system(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_source(tmp_path / "nothing")


class TestArchive:
    def archive(self, home: Path, prefix: str = "") -> Path:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as made:
            for path, text in FILES.items():
                info = tarfile.TarInfo(prefix + path)
                info.size = len(text.encode())
                made.addfile(info, io.BytesIO(text.encode()))
        (home / "a.tar.gz").write_bytes(out.getvalue())
        return home / "a.tar.gz"

    @pytest.mark.parametrize("prefix", ["", "repo-main/"])
    def test_a_directory_within(self, tmp_path: Path, prefix: str) -> None:
        source = self.archive(tmp_path, prefix)
        assert files(source, "skills/words") == WORDS
        assert rules(source, "skills/none") == ["archive-empty"]
        assert read(source, "skills/words", ArchiveLimits(Caps(files=4)))[0].tree.files.keys() == WORDS.keys()
        unpacked, findings = read_source(source)
        assert unpacked is None
        assert findings[-1].rule == "source-choice"
        assert "skills/other, skills/words" in findings[-1].message

    def test_a_directory_in_two_places(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as made:
            for path in ("a/words/SKILL.md", "b/words/SKILL.md"):
                made.addfile(tarfile.TarInfo(path))
        (tmp_path / "a.tar").write_bytes(out.getvalue())
        assert rules(tmp_path / "a.tar", "words") == ["archive-duplicate"]
        assert list(files(tmp_path / "a.tar", "a/words")) == ["SKILL.md"]

    def test_what_lies_elsewhere_is_checked_all_the_same(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as made:
            for path in ("words/SKILL.md", "elsewhere/../../evil"):
                made.addfile(tarfile.TarInfo(path))
        (tmp_path / "a.tar").write_bytes(out.getvalue())
        assert rules(tmp_path / "a.tar", "words") == ["archive-traversal"]

    def test_a_hostile_one(self, tmp_path: Path) -> None:
        (tmp_path / "a.zip").write_bytes(b"PK\x03\x04")
        assert rules(tmp_path / "a.zip") == ["archive-truncated"]
