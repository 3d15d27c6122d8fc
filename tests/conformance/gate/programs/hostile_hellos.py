"""Client hellos that name somebody else, nobody, several, or hide whom they mean; a program that says each."""

from __future__ import annotations

HELLO = r"""
def extension(kind, data):
    return struct.pack("!HH", kind, len(data)) + data


def server_name(*names):
    entries = b"".join(b"\0" + struct.pack("!H", len(name)) + name for name in (n.encode() for n in names))
    return extension(0, struct.pack("!H", len(entries)) + entries)


def hello(*extensions, pieces=1, version=b"\3\3"):
    body = (version + b"r" * 32 + b"\0" + struct.pack("!H", 4) + b"\x13\x01\xc0\x2f" + b"\1\0")
    more = b"".join((*extensions, extension(10, b"\0\2\0\x1d"), extension(13, b"\0\4\4\3\10\4"),
                     extension(43, b"\4\3\4\3\3"), extension(51, b"\0\x24\0\x1d\0\x20" + b"k" * 32)))
    body += struct.pack("!H", len(more)) + more
    handshake = b"\1" + struct.pack("!I", len(body))[1:] + body
    size = -(-len(handshake) // pieces)
    parts = [handshake[at:at + size] for at in range(0, len(handshake), size)]
    return b"".join(b"\x16\3\1" + struct.pack("!H", len(part)) + part for part in parts)


def answered(sock, first):
    '''serverhello, alert with its number, or how it ended.'''
    sock.settimeout(BOUND)
    try:
        sock.sendall(first)
        said = sock.recv(4096)
    except TimeoutError:
        return "timeout"
    except OSError:
        return "reset"
    if not said:
        return "closed"
    return {0x16: "serverhello", 0x15: f"alert {said[6]}" if len(said) > 6 else "alert"}.get(said[0], "other")


def both(name, port, first):
    '''On the transparent path, behind CONNECT and behind SOCKS.'''
    found = {}
    with socket.create_connection((name, port), BOUND) as sock:
        found["direct"] = answered(sock, first)
    with tunnel(f"{name}:{port}") as sock:
        found["connect"] = answered(sock, first)
    with socket.create_connection(PROXY, BOUND) as sock:
        ask(sock, b"\x05\x01\x00")
        ask(sock, b"\x05\x01\x00\x03" + bytes([len(name)]) + name.encode() + struct.pack("!H", port))
        found["socks"] = answered(sock, first)
    return found
"""

HELLOS = """
    name, port = "api.yard.test", args["port"]
    mine, other = server_name(name), server_name("other.yard.test")
    return {kind: both(name, port, first) for kind, first in {
        "good": hello(mine), "good in pieces": hello(mine, pieces=7), "upper case": hello(server_name("API.yard.test")),
        "another": hello(other), "none": hello(), "two": hello(server_name(name, "other.yard.test")),
        "two, mine last": hello(server_name("other.yard.test", name)), "twice": hello(mine, other),
        "empty": hello(server_name("")), "below": hello(server_name("deep.api.yard.test")),
        "above": hello(server_name("yard.test")),
        "dotted": hello(server_name("other.yard.test.")), "nul": hello(server_name("api.yard.test\\0.other.yard.test")),
        "address": hello(server_name("10.0.0.5")), "wild": hello(server_name("*.yard.test")),
        "ech": hello(mine, extension(0xfe0d, b"\\0" * 40)), "old esni": hello(mine, extension(0xffce, b"\\0" * 40)),
 "long": b"\\x16\\3\\1\\x40\\x01" + b"\\1" * 16385,
        "alert first": b"\\x15\\3\\1\\0\\2\\1\\0" + hello(mine), "ssl2": b"\\x80\\x2e\\1\\3\\1" + b"\\0" * 44,
        "http": get("other.yard.test").encode(),
    }.items()}
"""
GOOD = {"good", "good in pieces", "upper case"}
