"""Real clients, as programs for a sandbox: each has ``reach(host, port)``, which gives what the other side said."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.gate.programs import package_index
from tests.conformance.gate.programs.postgres import PASSWORD, USER

PACKAGES = ("requests", "httpx", "aiohttp", "psycopg[binary]", "websockets", "pip")
"""What the environment ``net`` of these tests holds."""

PRELUDE = """
import os, socket, ssl, subprocess, time

FILES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT")


def trust(pem):
    '''The servers' authority beside what is trusted already.'''
    for name in FILES:
        known = os.environ.get(name, "")
        path = f"/workspace/{name}.pem"
        with open(path, "w") as file:
            if known and os.path.exists(known):
                file.write(open(known).read())
            file.write(pem)
        os.environ[name] = path


def program(*words, **env):
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, env={**os.environ, **env})
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def timed(function, *args):
    began = time.monotonic()
    try:
        said, error = function(*args), ""
    except Exception as problem:
        said, error = None, f"{type(problem).__name__}: {problem}"
    return {"said": said, "error": error[-500:], "s": time.monotonic() - began}
"""

MAIN = """

def main(args):
    trust(args["ca"])
    begin = globals().get("begin")
    if begin:
        begin()
    return {name: timed(reach, *target) for name, target in args["targets"].items()}
"""


@dataclass(frozen=True, slots=True)
class Client:
    """``service`` of the world at ``name`` is what it talks to, ``says`` what it then gives; ``via`` are the ways on
    which the record may see it. ``own_s`` is the time that it takes by itself, refused or not."""

    id: str
    service: str
    body: str
    name: str = "api.yard.test"
    says: str = "hello"
    via: tuple[str, ...] = ("connect",)
    packages: bool = False
    own_s: float = 0.0

    def __str__(self) -> str:
        return self.id

    @property
    def source(self) -> str:
        return PRELUDE + self.body + MAIN


_DIRECT = ("direct",)

PYTHON = (
    Client("urllib", "https", """
import urllib.request
def reach(host, port):
    return urllib.request.urlopen(f"https://{host}:{port}/hello", timeout=15).read().decode()
"""),
    Client("urllib-plain", "http", """
import urllib.request
def reach(host, port):
    return urllib.request.urlopen(f"http://{host}:{port}/hello", timeout=15).read().decode()
""", via=("http",)),
    Client("urllib-no-proxy", "https", """
import urllib.request
def reach(host, port):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(f"https://{host}:{port}/hello", timeout=15).read().decode()
""", via=_DIRECT),
    Client("http.client-plain", "http", """
import http.client
def reach(host, port):
    connection = http.client.HTTPConnection(host, port, timeout=15)
    connection.request("GET", "/hello")
    return connection.getresponse().read().decode()
""", via=_DIRECT),
    Client("requests", "https", """
def begin():
    global requests
    import requests
def reach(host, port):
    return requests.get(f"https://{host}:{port}/hello", timeout=15).raise_for_status() or "hello"
""".replace('.raise_for_status() or "hello"', ".text"), packages=True),
    Client("requests-plain", "http", """
def begin():
    global requests
    import requests
def reach(host, port):
    answer = requests.get(f"http://{host}:{port}/hello", timeout=15)
    answer.raise_for_status()
    return answer.text
""", via=("http",), packages=True),
    Client("requests-no-proxy", "https", """
def begin():
    global requests
    import requests
def reach(host, port):
    with requests.Session() as session:
        session.trust_env = False
        return session.get(f"https://{host}:{port}/hello", timeout=15, verify=os.environ["SSL_CERT_FILE"]).text
""", via=_DIRECT, packages=True),
    Client("httpx", "https", """
def begin():
    global httpx
    import httpx
def reach(host, port):
    return httpx.get(f"https://{host}:{port}/hello", timeout=15).raise_for_status().text
""", packages=True),
    Client("httpx-no-proxy", "https", """
def begin():
    global httpx
    import httpx
def reach(host, port):
    context = ssl.create_default_context()
    with httpx.Client(trust_env=False, verify=context, timeout=15) as client:
        return client.get(f"https://{host}:{port}/hello").raise_for_status().text
""", via=_DIRECT, packages=True),
    *(Client(id, "https", f"""
def begin():
    global aiohttp, asyncio
    import aiohttp, asyncio
async def ask(url):
    async with aiohttp.ClientSession(trust_env={env}, timeout=aiohttp.ClientTimeout(15)) as session:
        async with session.get(url) as answer:
            answer.raise_for_status()
            return await answer.text()
def reach(host, port):
    return asyncio.run(ask(f"https://{{host}}:{{port}}/hello"))
""", via=via, packages=True) for id, env, via in (
        ("aiohttp", True, ("connect",)), ("aiohttp-no-proxy", False, _DIRECT))),
    Client("asyncio", "https", """
import asyncio
async def ask(host, port):
    async with asyncio.timeout(15):
        reader, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
        writer.write(f"GET /hello HTTP/1.1\\r\\nhost: {host}:{port}\\r\\nconnection: close\\r\\n\\r\\n".encode())
        said = await reader.read()
        writer.close()
        return said.rpartition(b"\\r\\n\\r\\n")[2].decode()
def reach(host, port):
    return asyncio.run(ask(host, port))
""", via=_DIRECT),
    Client("socket", "echo", """
def reach(host, port):
    with socket.create_connection((host, port), 15) as sock:
        sock.sendall(b"hello\\n")
        said = sock.recv(64).decode().strip()
        assert said, "closed"
        return said
""", name="raw.yard.test", via=_DIRECT),
    Client("socks5", "echo", """
def reach(host, port):
    with socket.create_connection(("127.0.0.1", 3128), 15) as sock:
        sock.sendall(b"\\x05\\x01\\x00")
        assert sock.recv(2) == b"\\x05\\x00"
        name = host.encode()
        sock.sendall(b"\\x05\\x01\\x00\\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
        answer = sock.recv(64)
        assert answer[1] == 0, f"reply {answer[1]}"
        sock.sendall(b"hello\\n")
        return sock.recv(64).decode().strip()
""", name="raw.yard.test", via=("socks5",)),
    Client("smtplib", "greeting", """
import smtplib
def reach(host, port):
    with smtplib.SMTP(host, port, timeout=15) as client:
        return client.noop()[1].decode()
""", name="mail.yard.test", says="as you say", via=_DIRECT),
    *(Client(f"psycopg-{mode}", "postgres", f"""
def begin():
    global psycopg
    import psycopg
def reach(host, port):
    words = f"host={{host}} port={{port}} user={USER} password={PASSWORD} dbname=postgres connect_timeout=15"
    with psycopg.connect(f"{{words}} sslmode={mode} sslrootcert={{os.environ['SSL_CERT_FILE']}}") as connection:
        encrypted = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()[0]
        assert encrypted == ({mode!r} != "disable")
        return connection.execute("select 'hel' || 'lo'").fetchone()[0]
""", name="db.yard.test", via=_DIRECT, packages=True) for mode in ("disable", "verify-full")),
    *(Client(id, service, f"""
def begin():
    global connect
    from websockets.sync.client import connect
def reach(host, port):
    context = ssl.create_default_context() if {service!r} == "wss" else None
    more = {{}} if {proxy} else {{"proxy": None}}
    with connect(f"{service}://{{host}}:{{port}}/", ssl=context, open_timeout=15, **more) as connection:
        connection.send("hello")
        return connection.recv(timeout=15)
""", name="ws.yard.test", via=via, packages=True) for id, service, proxy, via in (
        ("websocket", "ws", True, ("connect",)), ("websocket-no-proxy", "ws", False, _DIRECT),
        ("websocket-tls", "wss", True, ("connect",)), ("websocket-tls-no-proxy", "wss", False, _DIRECT))),
)  # fmt: skip

_NODE = """
def reach(host, port):
    return program("node", "-e", SCRIPT.replace("HOST", f"{host}:{port}"))
SCRIPT = """

_FETCH = 'fetch("https://HOST/hello").then(answer => answer.text()).then(text => process.stdout.write(text))'
_GET = """require("http").get("http://HOST/hello", answer => {
    if (answer.statusCode != 200) process.exit(1); answer.pipe(process.stdout) })"""

PROGRAMS = (
    *(Client(id, service, f"""
def reach(host, port):
    return program("curl", "-sSf", *{words!r}, "--max-time", "15", f"{service}://{{host}}:{{port}}/hello")
""", via=via) for id, service, words, via in (
        ("curl", "https", (), ("connect",)), ("curl-plain", "http", (), ("http",)),
        ("curl-no-proxy", "https", ("--noproxy", "*"), _DIRECT),
        ("curl-plain-no-proxy", "http", ("--noproxy", "*"), _DIRECT),
        ("curl-socks", "https", ("--socks5-hostname", "127.0.0.1:3128"), ("socks5",)))),
    Client("wget", "https", """
def reach(host, port):
    return program("wget", "-q", "-O-", "-t1", "-T15", "--ca-certificate", os.environ["SSL_CERT_FILE"],
                   f"https://{host}:{port}/hello")
"""),
    *(Client(id, "https", f"""
def reach(host, port):
    target = f"/workspace/{{host}}-{{port}}"
    program("git", "clone", "-q", f"https://{{host}}:{{port}}/git/project.git", target, **{env!r})
    return open(target + "/README").read().strip()
""", name="git.yard.test", says="from git", via=via, own_s=1.0) for id, env, via in (
        ("git", {}, ("connect",)), ("git-no-proxy", {"no_proxy": "*", "NO_PROXY": "*"}, _DIRECT))),
    Client("pip", "https", f"""
import sys
def reach(host, port):
    target = f"/workspace/{{host}}-{{port}}"
    program(sys.executable, "-m", "pip", "install", "-q", "--retries", "0", "--timeout", "15", "--no-cache-dir",
            "--index-url", f"https://{{host}}:{{port}}/simple/", "--target", target, "{package_index.PROJECT}",
            PYTHONPATH=os.pathsep.join(sys.path), PIP_CONFIG_FILE="/dev/null", HOME="/workspace")
    say = "import {package_index.PROJECT} as p; print(p.TEXT)"
    return program(sys.executable, "-c", say, PYTHONPATH=target).strip()
""", name="index.yard.test", says="from the index", packages=True, own_s=4.0),
    Client("node-fetch", "https", _NODE + repr(_FETCH), via=_DIRECT, own_s=1.0),
    Client("node-http", "http", _NODE + repr(_GET), via=_DIRECT, own_s=1.0),
)  # fmt: skip

CLIENTS = (*PYTHON, *PROGRAMS)
NEEDED = {"curl": "curl", "wget": "wget", "git": "git", "node": "node"}
"""Programs of the host, by the first word of a client's id."""
