"""A sandbox has a loopback of its own and nothing else."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.attacks.conftest import Attack
from tests.attacks.programs import Row

FAMILIES = {
    "AF_VSOCK": 40, "AF_PACKET": 17, "AF_ALG": 38, "AF_KEY": 15, "AF_BLUETOOTH": 31, "AF_CAN": 29, "AF_XDP": 44,
    "AF_RDS": 21, "AF_TIPC": 30, "AF_X25": 9, "AF_AX25": 3, "AF_RXRPC": 33, "AF_KCM": 41, "AF_QIPCRTR": 42,
    "AF_SMC": 43, "AF_LLC": 26, "AF_PPPOX": 24, "AF_NFC": 39, "AF_CAIF": 37, "AF_MCTP": 45,
    "AF_VSOCK with high bits": 40 + (1 << 32),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_is_not_needed_is_refused(name: str, hold: Callable[[Row], None]) -> None:
    number = FAMILIES[name]
    twin = "refusal(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close())"
    hold(Row(name, f"sys_call(41, {number}, 1, 0)", ("EAFNOSUPPORT",), twin, ""))


ROWS = [
    Row("raw sockets", "refusal(socket.socket, 2, 3, 1)", ("EPERM", "EPROTONOSUPPORT"),
        "refusal(socket.socket, 2, 1, 0)", ""),
    Row("the world", "refusal(socket.create_connection, ('1.1.1.1', 443), 2)", ("ENETUNREACH",),
        "[socket.create_server(('127.0.0.1', 0)).close()]", [None]),
    Row("the metadata service", "refusal(socket.create_connection, ('169.254.169.254', 80), 2)", ("ENETUNREACH",),
        "[socket.create_server(('::1', 0), family=socket.AF_INET6).close()]", [None]),
    Row("another interface", "sorted(name for _, name in socket.if_nameindex())", (["lo"],),
        "'lo' in open('/proc/net/dev').read()", True),
    Row("bringing the loopback down",
        "refusal(fcntl.ioctl, socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0))", ("EPERM",),
        "refusal(fcntl.ioctl, socket.socket(), 0x8913, struct.pack('16sh14x', b'lo', 0))", ""),
    Row("unix sockets of the host", "open('/proc/net/unix').read().count('\\n')", (1,),
        "len(socket.socketpair())", 2),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_refused(row: Row, hold: Callable[[Row], None]) -> None:
    hold(row)


@pytest.fixture
def listeners() -> Iterator[dict[str, str | int]]:
    """An abstract unix socket and a TCP port of this host, both of which answer."""
    name = uuid.uuid4().hex
    local, tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    local.bind(f"\0{name}")
    local.listen()
    with local, tcp:
        yield {"name": name, "port": tcp.getsockname()[1]}


def test_listeners_of_the_host_are_out_of_reach(listeners: dict[str, str | int], attack: Attack) -> None:
    socket.create_connection(("127.0.0.1", int(listeners["port"]))).close()
    run = attack(
        """
        own = socket.socket(socket.AF_UNIX)
        own.bind("\\0mine")
        own.listen()
        return {"unix": refusal(socket.socket(socket.AF_UNIX).connect, "\\0" + args["name"]),
                "tcp": refusal(socket.create_connection, ("127.0.0.1", args["port"]), 2),
                "twin": refusal(socket.socket(socket.AF_UNIX).connect, "\\0mine")}
        """,
        listeners,
    )
    assert run.output == {"unix": "ECONNREFUSED", "tcp": "ECONNREFUSED", "twin": ""}


def test_two_sandboxes_have_no_socket_in_common(attack: Attack) -> None:
    runs = []
    body = """
        own = socket.socket(socket.AF_UNIX)
        taken = refusal(own.bind, "\\0meeting")
        port = refusal(socket.create_server, ("127.0.0.1", 4321))
        time.sleep(0.5)
        return {"taken": taken, "port": port, "files": os.listdir("/dev/shm") + os.listdir("/tmp")}
    """
    threads = [threading.Thread(target=lambda: runs.append(attack(body))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.output for run in runs] == [{"taken": "", "port": "", "files": []}] * 2
