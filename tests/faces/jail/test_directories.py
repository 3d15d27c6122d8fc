"""Directories of the host in a jail: what is shown, to whom files belong, and what does not get through."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.faces.cli.jail.directories import chosen
from tests.faces.jail.conftest import Jails

_REFUSED = 2


def test_files_belong_to_the_caller_on_both_sides(jails: Jails, place: Path) -> None:
    (place / "mine").write_text("kept from others")
    (place / "mine").chmod(0o600)
    code = f"""
import os
os.chdir({str(place)!r})
print(open("mine").read(), os.stat("mine").st_uid == os.getuid())
os.mkdir("made", 0o700)
open("made/file", "w").write("new")
os.rename("made/file", "file")
open("mine", "a").write(" no more")
"""
    done = jails.python(code, "--write", str(place))
    assert (done.stdout, done.stderr) == (b"kept from others True\n", b"")
    assert (place / "mine").read_text() == "kept from others no more"
    for name in ("made", "file", "mine"):
        found = (place / name).stat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    [record] = jails.records()
    assert f"wrote to {place} of the host" in record.notes
    assert str(place) in " ".join(record.guarantees["host_files"]["evidence"])


def test_a_directory_to_read_cannot_be_changed(jails: Jails, place: Path) -> None:
    (place / "file").write_text("as it was")
    before = (place / "file").stat()
    code = f"""
import os
def tried(call, *words):
    try: call(*words)
    except OSError: return "refused"
    return "done"
place = {str(place)!r}
print(*[tried(*words) for words in (
    (open, f"{{place}}/file", "r+"), (open, f"{{place}}/new", "w"), (os.unlink, f"{{place}}/file"),
    (os.chmod, f"{{place}}/file", 0o777), (os.utime, f"{{place}}/file"), (os.mkdir, f"{{place}}/d"),
    (os.link, f"{{place}}/file", f"{{place}}/hard"), (os.link, f"{{place}}/file", "/workspace/hard"),
    (os.truncate, f"{{place}}/file", 0), (open, f"/proc/self/root{{place}}/file", "a"))])
print(open(f"{{place}}/file").read())
"""
    done = jails.python(code, "--read", str(place))
    assert done.stdout.decode().split("\n")[:2] == [" ".join(["refused"] * 10), "as it was"], done.stderr
    after = (place / "file").stat()
    assert (after.st_mode, after.st_mtime_ns, os.listdir(place)) == (before.st_mode, before.st_mtime_ns, ["file"])


def test_no_link_leads_out(jails: Jails, place: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("of the host")
    (place / "file").symlink_to(tmp_path / "outside" / "secret")
    (place / "directory").symlink_to(tmp_path / "outside")
    (place / "up").symlink_to("../../../../etc/shadow")
    code = f"""
import os
os.chdir({str(place)!r})
for name in ("file", "directory/secret", "up", "../../../../../../etc/shadow", "..", "/proc/1/root/etc/shadow"):
    try: print(name, open(name).read() if name != ".." else os.listdir(".."))
    except OSError as error: print(name, type(error).__name__)
"""
    done = jails.python(code, "--write", str(place))
    assert b"of the host" not in done.stdout
    assert b"root:" not in done.stdout
    assert f".. ['{place.name}']".encode() in done.stdout


def test_no_program_of_the_host_is_reached_through_a_file(jails: Jails, place: Path) -> None:
    """A socket, a pipe and a device file of the host lie in the directory, and its mount is read-only or not."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as streams, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        streams.bind(str(place / "stream.sock"))
        streams.listen()
        streams.setblocking(False)
        datagrams.bind(str(place / "datagram.sock"))
        datagrams.setblocking(False)
        os.mkfifo(place / "pipe")
        pipe = os.open(place / "pipe", os.O_RDWR | os.O_NONBLOCK)
        if os.getuid() == 0:
            os.mknod(place / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        code = f"""
import os, socket
os.chdir({str(place)!r})
def tried(name, call):
    try: call()
    except OSError as error: print(name, "refused")
    else: print(name, "REACHED")
def connect(kind, name): socket.socket(socket.AF_UNIX, kind).connect(name)
tried("stream", lambda: connect(socket.SOCK_STREAM, "stream.sock"))
tried("datagram", lambda: connect(socket.SOCK_DGRAM, "datagram.sock"))
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    tried("pair", lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", "datagram.sock"))
    tried("pair", lambda: socket.socketpair(socket.AF_UNIX, kind)[0].connect("stream.sock"))
tried("pipe", lambda: os.write(os.open("pipe", os.O_WRONLY | os.O_NONBLOCK), b"x"))
tried("device", lambda: open("device").read(1))
"""
        done = jails.python(code, "--read", str(place))
        for sock in (streams, datagrams):
            with pytest.raises(BlockingIOError):
                heard.append(sock.accept()[0].recv(1) if sock is streams else sock.recv(1))
        with pytest.raises(BlockingIOError):
            os.read(pipe, 1)
        os.close(pipe)
    assert b"REACHED" not in done.stdout
    assert done.stdout.count(b"refused") == 12, done.stderr


def test_nothing_left_behind_lends_the_caller_to_others(jails: Jails, place: Path) -> None:
    """Set-user-ID files, pipes, sockets and device files cannot be made in a directory of the host."""
    code = f"""
import ctypes, os, socket, stat, struct
os.chdir({str(place)!r})
open("plain", "w").close()
libc = ctypes.CDLL(None)
def tried(call, *words):
    try: call(*words)
    except OSError: pass
for mode in (0o4755, 0o2755, 0o6777):
    tried(os.chmod, "plain", mode)
    tried(os.fchmod, os.open("plain", os.O_RDONLY), mode)
    tried(os.open, f"made-{{mode}}", os.O_CREAT | os.O_WRONLY, mode)
    tried(os.open, ".", os.O_TMPFILE | os.O_WRONLY, mode)
    tried(os.mknod, f"node-{{mode}}", stat.S_IFREG | mode)
    libc.syscall(ctypes.c_long(452), -100, b"plain", mode, 0)
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, mode, 0)
    libc.syscall(ctypes.c_long(437), -100, f"openat2-{{mode}}".encode(), how, ctypes.c_size_t(24))
tried(os.mkfifo, "fifo")
tried(os.mknod, "sock", stat.S_IFSOCK | 0o666)
tried(os.mknod, "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
tried(lambda: socket.socket(socket.AF_UNIX).bind("bound"))
tried(lambda: os.setxattr("plain", "security.capability", b"x" * 20))
print("tried")
"""
    done = jails.python(code, "--write", str(place))
    assert done.stdout == b"tried\n", done.stderr
    for entry in place.iterdir():
        mode = entry.lstat().st_mode
        assert stat.S_ISREG(mode), entry
        assert not mode & (stat.S_ISUID | stat.S_ISGID), entry


def test_below_tmp_a_link_leads_to_it(jails: Jails, tmp_path: Path) -> None:
    """There too nothing can be made that others would wait on, and a pipe of the host cannot be written to."""
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("here")
    os.mkfifo(shown / "pipe")
    pipe = os.open(shown / "pipe", os.O_RDWR | os.O_NONBLOCK)
    code = f"""
import os
print(open({str(shown / "file")!r}).read())
for call in (lambda: os.write(os.open({str(shown / "pipe")!r}, os.O_WRONLY | os.O_NONBLOCK), b"x"),):
    try: call()
    except OSError: print("refused")
open("/tmp/own", "w").close()
"""
    done = jails.python(code, "--read", str(shown))
    os.close(pipe)
    assert done.stdout == b"here\nrefused\n", done.stderr


def test_places_that_no_jail_may_see_are_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    inner = home / "work"
    for made in (inner, data / "skills"):
        made.mkdir(parents=True)
    (place / "link").symlink_to(inner)
    monkeypatch.setenv("HOME", str(home))
    wrong = {
        "/": "the whole host", str(home): "which no sandbox may see", str(home.parent): "which no sandbox may see",
        str(data): "which no sandbox may see", str(data / "skills"): "which no sandbox may see",
        str(place / "link"): f"name {inner}", "/proc/1": "of its own", "/etc": "of its own", "/tmp": "of its own",
        str(tmp_path / "none"): "cannot be opened", str(place / "a\nb"): "printable",
    }  # fmt: skip
    with suppress(KeyError):  # the variable may be set by the client: the home that the system knows is refused, too
        if (known := Path(pwd.getpwuid(os.getuid()).pw_dir)).is_dir() and known != Path("/"):
            wrong[str(known.resolve())] = "which no sandbox may see"
    for path, said in wrong.items():
        for read, write in (([Path(path)], []), ([], [Path(path)])):
            with pytest.raises(InvalidInput, match=said):
                chosen(read, write, [data])
    (place / "in").mkdir()
    with pytest.raises(InvalidInput, match="lies in"):
        chosen([place], [place / "in"], [data])
    [found] = chosen([inner], [], [data])
    assert (found.path, found.inode, found.writable) == (str(inner), inner.stat().st_ino, False)


def test_a_refusal_ends_the_command_before_anything_starts(jails: Jails) -> None:
    done = jails.run("--read", "/", "--", "true")
    assert (done.returncode, done.stdout) == (_REFUSED, b"")
    assert b"read: cannot be the whole host" in done.stderr
    assert not (jails.home / "jails").exists()


def test_what_holds_the_key_of_the_secrets_is_refused(jails: Jails, place: Path) -> None:
    """It may be kept apart from the data directory, and so may the token of a vault."""
    for name, setting in (("key", "SECRETS__KEY_FILE"), ("token", "SECRETS__VAULT__TOKEN_FILE")):
        (place / name).mkdir()
        (place / name / "file").write_text("00" * 32)
        (place / name / "file").chmod(0o600)
        env = {f"SKILLYARD_{setting}": str(place / name / "file")}
        done = jails.run("--read", str(place / name), "--", "true", env=env)
        assert done.returncode == _REFUSED, done.stderr
        assert b"which no sandbox may see" in done.stderr


def test_other_isolations_refuse_directories_by_name(jails: Jails, place: Path) -> None:
    done = jails.run("--isolation", "landlock", "--read", str(place), "--", "true")
    assert done.returncode not in (0, 1)
    assert b"landlock" in done.stderr


def test_a_directory_that_is_exchanged_meanwhile_is_not_shown(place: Path) -> None:
    """The keeper's part of it: the path leads elsewhere by the time that it opens it."""
    from skillyard.sandbox.native.grounds.namespaces import directories
    from skillyard.sandbox.native.keeper.request import Directory

    (place / "meant").mkdir()
    (place / "other").mkdir()
    meant = (place / "meant").stat()
    order = Directory(str(place / "meant"), meant.st_dev, meant.st_ino, os.getuid(), os.getgid(), True)
    (place / "meant").rename(place / "gone")
    (place / "other").rename(place / "meant")
    with pytest.raises(OSError, match="another file is at this place"):
        directories.opened([order], None)
    (place / "meant").rmdir()
    (place / "meant").symlink_to(place / "gone")
    with pytest.raises(OSError, match="another file is at this place"):
        directories.opened([order], None)
