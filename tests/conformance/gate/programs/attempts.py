"""What hostile programs of these tests share: every way to ask for a connection, each told in one line."""

from __future__ import annotations

import textwrap

PRELUDE = r"""
import errno, os, socket, ssl, struct, subprocess, sys, threading, time

BOUND = 5
PROXY = ("127.0.0.1", 3128)


def told(function, *args):
    '''What came back, or how it was refused.'''
    try:
        said = function(*args)
    except ssl.SSLError as error:
        return f"tls {error.reason}"
    except TimeoutError:
        return "timeout"
    except UnicodeError:
        return "no such name"
    except OSError as error:
        name = errno.errorcode.get(error.errno) if isinstance(error.errno, int) and error.errno > 0 else None
        return name or type(error).__name__
    return said.decode("latin-1") if isinstance(said, bytes) else str(said)


def ask(sock, text):
    '''The first bytes of the answer; all of it where the other side ends after it.'''
    sock.settimeout(BOUND)
    sock.sendall(text.encode("latin-1") if isinstance(text, str) else text)
    said = sock.recv(4096)
    return said + all_of(sock) if said.startswith(b"HTTP/1") and b"\r\nconnection: close" in said.lower() else said


def all_of(sock, wait_s=BOUND):
    '''All that comes until the end, or until nothing does for so long.'''
    sock.settimeout(wait_s)
    said = b""
    try:
        while piece := sock.recv(65536):
            said += piece
    except ConnectionError:
        said += b"[reset]"
    except TimeoutError:
        said += b"[timeout]"
    return said


def get(host, path="/hello", more=""):
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n"


def direct(host, port, text=None):
    with socket.create_connection((host, port), BOUND) as sock:
        return ask(sock, text or get(f"{host}:{port}"))


def http(url_host, path="/hello", host=None, more=""):
    '''A plain request through the proxy.'''
    with socket.create_connection(PROXY, BOUND) as sock:
        sock.sendall(get(host or url_host, f"http://{url_host}{path}", more).encode("latin-1"))
        return all_of(sock)


def tunnel(target, host=None):
    '''A socket behind CONNECT; the answer when that is not 200.'''
    sock = socket.create_connection(PROXY, BOUND)
    answer = ask(sock, f"CONNECT {target} HTTP/1.1\r\nhost: {host or target}\r\n\r\n")
    if b" 200 " in answer.split(b"\r\n")[0] + b" ":
        return sock
    sock.close()
    return answer


def connect(target, text=None):
    sock = tunnel(target)
    if isinstance(sock, bytes):
        return sock
    with sock:
        return ask(sock, text or get(target))


def socks(kind, address, port, text=None):
    '''SOCKS5 with an address type: 1 IPv4, 3 a name, 4 IPv6.'''
    if kind == 3:
        packed = bytes([len(address.encode())]) + address.encode()
    else:
        packed = socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, address)
    with socket.create_connection(PROXY, BOUND) as sock:
        if ask(sock, b"\x05\x01\x00") != b"\x05\x00":
            return "socks: no method"
        answer = ask(sock, b"\x05\x01\x00" + bytes([kind]) + packed + struct.pack("!H", port))
        if not answer or answer[1]:
            return f"socks reply {answer[1] if answer else 'none'}"
        return ask(sock, text or get(f"{address}:{port}"))


def tls(sock, name, context=None):
    '''A handshake that trusts anybody, with a server name or none.'''
    context = context or ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock, server_hostname=name)


def question(name, kind=1, number=7):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


def dns(packet, server=("127.0.0.1", 53)):
    '''The answer's code and how many records it has, by datagram.'''
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.connect(server)
        sock.send(packet)
        answer = sock.recv(4096)
        return f"code {answer[3] & 15}, {struct.unpack('!H', answer[6:8])[0]} records"


def dns_stream(packet, server=("127.0.0.1", 53)):
    with socket.create_connection(server, BOUND) as sock:
        answer = ask(sock, struct.pack("!H", len(packet)) + packet)[2:]
        return f"code {answer[3] & 15}, {struct.unpack('!H', answer[6:8])[0]} records" if len(answer) > 8 else "closed"
"""


def program(body: str, more: str = "") -> str:
    """Source whose ``main(args)`` has ``body``, with the prelude before it and ``more`` definitions."""
    return f"{PRELUDE}{more}\n\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")
