"""Reading hostile directories, and the snapshots made of what was read."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from skillyard.stores.disk import remove_tree
from skillyard.stores.skills import tree as tree_module
from skillyard.stores.skills.catalogue.stamps import bundle_stamps
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from tests.unit.stores.skills.skilldirs import write

pytestmark = pytest.mark.ordinary


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write(tmp_path / "skill", {"SKILL.md": "x", "code/main.py": "y"})


def rules(directory: Path, caps: Caps | None = None) -> list[tuple[str, str]]:
    tree, findings = read_tree(directory, caps or Caps())
    assert (tree is None) == bool(findings)
    return [(finding.file, finding.rule) for finding in findings]


def read(directory: Path) -> Tree:
    tree, findings = read_tree(directory, Caps())
    assert tree is not None, findings
    return tree


def test_a_tree_holds_files_with_their_modes(home: Path) -> None:
    (home / "code" / "main.py").chmod(0o755)
    write(home, {".git/config": "x", "__pycache__/a.pyc": "x", "code/b.pyc": "x", ".env": "x", ".keep": "x"})
    tree = read(home)
    assert list(tree.files) == [".keep", "SKILL.md", "code/main.py"]
    assert [file.executable for file in tree.files.values()] == [False, False, True]


def test_the_digest_is_over_paths_modes_and_bytes(home: Path) -> None:
    digests = [read(home).digest]
    write(home, {".git/HEAD": "x"})
    (home / "empty").mkdir()
    assert read(home).digest == digests[0]
    for change in (
        lambda: (home / "SKILL.md").write_text("z"),
        lambda: (home / "SKILL.md").chmod(0o755),
        lambda: (home / "SKILL.md").rename(home / "SKILL2.md"),
    ):
        change()
        digests.append(read(home).digest)
    assert len(set(digests)) == 4


def test_links_inside_become_files(home: Path) -> None:
    (home / "copy.md").symlink_to("SKILL.md")
    (home / "lib").symlink_to("code", target_is_directory=True)
    (home / "code" / "up").symlink_to("../SKILL.md")
    (home / "absolute").symlink_to(home / "SKILL.md")
    files = read(home).files
    assert {path: file.data for path, file in files.items()} == {
        "SKILL.md": b"x",
        "absolute": b"x",
        "code/main.py": b"y",
        "code/up": b"x",
        "copy.md": b"x",
        "lib/main.py": b"y",
        "lib/up": b"x",
    }


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("/etc/passwd", "link-outside"),
        ("/etc", "link-outside"),
        ("../secret", "link-outside"),
        ("../skill-other/x", "link-outside"),
        ("code/../../secret", "link-outside"),
        ("..", "link-outside"),
        (".", "link-outside"),
        ("link", "link-loop"),
        ("nothing", "link-broken"),
        ("code/nothing", "link-broken"),
        ("nothing/at/all", "unreadable"),
        (".git/config", "link-excluded"),
        ("x" * 255, "link-broken"),
    ],
)
def test_links_that_are_refused(home: Path, target: str, rule: str) -> None:
    write(home.parent, {"secret": "s", "skill-other/x": "s", "skill/.git/config": "s"})
    (home / "link").symlink_to(target)
    assert rules(home) == [("link", rule)]


def test_links_to_a_directory_above(home: Path) -> None:
    (home / "code" / "again").symlink_to("../code")
    assert rules(home) == [("code/again", "link-loop")]


def test_links_that_chase_each_other(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    write(home, {"c/x": "", "d/x": ""})
    (home / "c" / "d").symlink_to("../d")
    (home / "d" / "c").symlink_to("../c")
    assert {rule for _, rule in rules(home)} == {"link-loop"}


def test_links_that_multiply_end_at_the_caps(home: Path) -> None:
    """Each level links twice to the one below: 2^20 files when followed without end."""
    for level in range(20):
        write(home, {f"d{level}/x": ""})
        for name in ("a", "b") if level < 19 else ():
            (home / f"d{level}" / name).symlink_to(f"../d{level + 1}")
    assert {rule for _, rule in rules(home)} <= {"tree-files", "tree-depth"}
    assert len(bundle_stamps(str(home), Caps())) <= 4 * 512 + 2


def test_special_files(home: Path) -> None:
    os.mkfifo(home / "fifo")
    (home / "to-fifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        previous = Path.cwd()
        os.chdir(home)
        try:
            listener.bind("sock")
        finally:
            os.chdir(previous)
        assert rules(home) == [("fifo", "special-file"), ("sock", "special-file"), ("to-fifo", "special-file")]


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"back\\slash", b"\x1b[2J", b"bidi\xe2\x80\xae"])
def test_names_that_nobody_can_ask_for(home: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(home), name), "wb"):
        pass
    ((file, rule),) = rules(home)
    assert (rule, file.isprintable()) == ("file-name", True)


def test_names_in_any_script_are_fine(home: Path) -> None:
    write(home, {"résumé/数据.csv": "1"})
    assert "résumé/数据.csv" in read(home).files


def test_caps(home: Path) -> None:
    assert rules(home, Caps(files=1)) == [("code/main.py", "tree-files")]
    assert rules(home, Caps(bytes=1)) == [("code/main.py", "tree-bytes")]
    assert rules(home, Caps(bytes=2, files=2)) == []
    assert rules(home, Caps(depth=0)) == [("code", "tree-depth")]


def test_a_huge_file_is_not_read(home: Path) -> None:
    with (home / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert rules(home) == [("huge", "tree-bytes")]


def test_a_deep_tree(home: Path) -> None:
    path = home
    for _ in range(300):
        path /= "d"
    path.mkdir(parents=True)
    assert [rule for _, rule in rules(home)] == ["tree-depth"]


def test_many_empty_directories(home: Path) -> None:
    for number in range(3000):
        (home / f"d{number}").mkdir()
    assert [rule for _, rule in rules(home)] == ["tree-files"]


def test_many_findings_are_cut(home: Path) -> None:
    for number in range(100):
        (home / f"l{number}").symlink_to("/etc")
    assert len(rules(home)) == 20


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_what_cannot_be_read(home: Path) -> None:
    (home / "SKILL.md").chmod(0)
    assert rules(home) == [("SKILL.md", "unreadable")]


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    assert rules(tmp_path / "none") == [(".", "unreadable")]


def test_a_file_that_is_swapped_while_it_is_read(home: Path) -> None:
    """A link put in a file's place shows up as itself or not at all, never as what it leads to."""
    secret = write(home.parent, {"secret": "s" * 100}) / "secret"
    victim, stop = home / "victim", threading.Event()
    victim.write_text("v")

    def swap() -> None:
        other = home.parent / "other"
        while not stop.is_set():
            other.symlink_to(secret)
            other.rename(victim)
            other.write_text("v")
            other.rename(victim)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            tree, _findings = read_tree(home, Caps())
            assert tree is None or tree.files["victim"].data in (b"v", b"")
    finally:
        stop.set()
        thread.join()


def test_a_root_that_is_swapped_while_a_link_in_it_is_followed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read below where the root's name leads afterwards."""
    elsewhere = write(home.parent / "elsewhere", {"notes.txt": "of somebody else"})
    write(home, {"notes.txt": "mine"})
    (home / "link").symlink_to("notes.txt")

    def swap(directory: str, path: str) -> bool:
        home.rename(home.parent / "moved")
        home.symlink_to(elsewhere)
        return is_below(directory, path)

    is_below = tree_module.is_below
    monkeypatch.setattr(tree_module, "is_below", swap)
    assert read(home).files["link"].data == b"mine"


def modes(directory: Path) -> dict[str, int]:
    return {str(p.relative_to(directory)): stat.S_IMODE(p.lstat().st_mode) for p in directory.rglob("*")}


def test_a_snapshot_is_read_only_and_private(home: Path, tmp_path: Path) -> None:
    (home / "code" / "main.py").chmod(0o700)
    snapshots = Snapshots(tmp_path / "deep" / "snapshots")
    tree = read(home)
    old = os.umask(0o077)
    try:
        path = snapshots.store(tree)
    finally:
        os.umask(old)
    assert path == tmp_path / "deep" / "snapshots" / tree.digest
    assert modes(path) == {"SKILL.md": 0o444, "code": 0o555, "code/main.py": 0o555}
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o555, 0o700)
    assert read(path).digest == tree.digest
    assert snapshots.store(tree) == path
    assert [entry.name for entry in path.parent.iterdir()] == [tree.digest]


@pytest.mark.parametrize("damage", ["content", "mode", "missing", "extra", "link"])
def test_a_snapshot_that_was_damaged_is_made_anew(home: Path, tmp_path: Path, damage: str) -> None:
    tree = read(home)
    path = Snapshots(tmp_path / "s").store(tree)
    file = path / "SKILL.md"
    path.chmod(0o700)
    file.chmod(0o600)
    match damage:
        case "content":
            file.write_text("z")
            file.chmod(0o444)
        case "missing":
            file.unlink()
        case "extra":
            file.chmod(0o444)
            (path / "extra").write_text("e")
        case "link":
            file.unlink()
            file.symlink_to("/etc/passwd")
    assert Snapshots(tmp_path / "s").store(tree) == path
    assert read(path).digest == tree.digest
    assert modes(path)["SKILL.md"] == 0o444


def test_two_stores_make_one_snapshot_at_once(home: Path, tmp_path: Path) -> None:
    tree, stores = read(home), [Snapshots(tmp_path / "s") for _ in range(8)]
    threads = [threading.Thread(target=store.store, args=(tree,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in (tmp_path / "s").iterdir()] == [tree.digest]


def test_what_nobody_uses_is_removed(home: Path, tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "s")
    assert snapshots.names() == set()
    first = snapshots.store(read(home))
    (home / "SKILL.md").write_text("changed")
    second = snapshots.store(read(home))
    (tmp_path / "s" / ".tmp-crashed" / "code").mkdir(parents=True)
    unused = snapshots.names() - {first.name}
    assert len(unused) == 2
    snapshots.remove(unused)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [first.name]
    assert snapshots.store(read(home)) == second
    assert read(second).files["SKILL.md"].data == b"changed"


def test_removing_follows_no_links(tmp_path: Path) -> None:
    kept = write(tmp_path, {"kept/file": "x"}) / "kept"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(kept)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert (kept / "file").read_text() == "x"
    assert not (tmp_path / "tree").exists()
