"""What the way out costs: bytes and connections through the gate beside a direct connection and a plain proxy, and
what a policy adds to a run that never connects."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.certificates import certify
from skillyard.bench.installations import interpreter
from skillyard.bench.subject import SUM, WrongResult
from skillyard.bench.turns import Rounds
from skillyard.config.settings import load_settings
from skillyard.domain.errors import SkillyardError
from skillyard.engine.packages.environment import base_interpreter
from skillyard.runtime import Runtime

HOST, SKILL, SECRET = "origin.bench", "bench.network", "BENCH_KEY"
_BOUND_S = 60.0
_SETTLE_S = 0.08
_MIB = 1 << 20

CLIENT = """
def main(args):
    import os, socket, ssl, time
    target = f"{args['host']}:{args['port']}"
    def opened():
        if args["proxy"]:
            sock = socket.create_connection(("127.0.0.1", args["proxy"]), 20)
            sock.sendall(f"CONNECT {target} HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n".encode())
            answer = b""
            while b"\\r\\n\\r\\n" not in answer:
                answer += sock.recv(1) or b"\\r\\n\\r\\n"
            assert b" 200 " in answer.split(b"\\r\\n")[0] + b" ", answer
        else:
            sock = socket.create_connection((args["address"] or args["host"], args["port"]), 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as every HTTP client does
        return context.wrap_socket(sock, server_hostname=args["host"]) if context else sock
    def fetched(size):
        with opened() as sock:
            key = os.environ.get("BENCH_KEY", "")
            more = f"authorization: Bearer {key}\\r\\n" if key else ""
            sock.sendall(f"GET /{size} HTTP/1.1\\r\\nhost: {target}\\r\\n{more}\\r\\n".encode())
            buffer, got = bytearray(1 << 18), 0
            while count := sock.recv_into(buffer):
                got += count
            assert got >= size, bytes(buffer[:200])
    context = None
    if args["tls"]:
        context = ssl.create_default_context()
        if args["ca"]:
            context.load_verify_locations(cadata=args["ca"])
    fetched(1)
    times = []
    for _ in range(args["connections"]):
        began = time.perf_counter()
        fetched(1)
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    fetched(args["size"])
    return {"s": time.perf_counter() - began, "times": times}
"""
_PLAIN = f"{CLIENT}\nimport json, sys\nprint(json.dumps(main(json.loads(sys.argv[1]))))"


@dataclass(frozen=True, slots=True)
class Way:
    """``inside`` a sandbox or not; ``proxy``: whose CONNECT it takes: the gate's, the plain one's, or none."""

    id: str
    title: str
    inside: bool
    proxy: str = ""
    tls: bool = False
    secret: bool = False


WAYS = (
    Way("direct", "no sandbox, no proxy", False),
    Way("proxy", "no sandbox, the plainest proxy (CONNECT)", False, "plain"),
    Way("gate", "the gate, transparent", True),
    Way("gate_connect", "the gate, CONNECT", True, "gate"),
    Way("direct_tls", "no sandbox, no proxy, TLS", False, tls=True),
    Way("proxy_tls", "no sandbox, the plainest proxy, TLS", False, "plain", tls=True),
    Way("gate_tls", "the gate, TLS passed on", True, "gate", tls=True),
    Way("gate_secret", "the gate, TLS taken apart for a secret", True, "gate", tls=True, secret=True),
)


@dataclass(slots=True)
class Ways:
    """Seconds by way: of one transfer of ``size`` bytes, and of a connection with one small answer. ``plain`` and
    ``policy`` are runs that connect nowhere, without and with a policy."""

    size: int
    transfer: dict[str, Rounds] = field(default_factory=lambda: {way.id: Rounds() for way in WAYS})
    connection: dict[str, Rounds] = field(default_factory=lambda: {way.id: Rounds() for way in WAYS})
    plain: Rounds = field(default_factory=Rounds)
    policy: Rounds = field(default_factory=Rounds)

    def added_ms(self) -> float | None:
        """What a policy adds to a ready run: the median of the differences."""
        added = self.policy.excess(self.plain)
        return None if added is None else round(added * 1000, 3)

    def rows(self) -> Iterator[dict[str, Any]]:
        """``vs_direct`` and ``vs_proxy`` are rates as parts of the other's, for bytes; for connections their times."""
        for way in WAYS:
            transfer, connection = self.transfer[way.id], self.connection[way.id]
            if not transfer.samples:
                continue
            suffix = "_tls" if way.tls else ""
            bases = {"vs_direct": f"direct{suffix}", "vs_proxy": f"proxy{suffix}"}
            took, waited = _middle(transfer), _middle(connection)
            yield {
                "id": way.id,
                "title": way.title,
                "mib_per_s": round(self.size / _MIB / took, 1),
                "connection_ms": round(waited * 1000, 3),
                **{name: _rounded(self.transfer[base].ratio(transfer)) for name, base in bases.items()},
                **{
                    f"connection_{name}": _rounded(connection.ratio(self.connection[base]))
                    for name, base in bases.items()
                },
            }


async def measure(home: Path, rounds: int, size: int) -> Ways:
    """Every way in turns. Raises SkillyardError, WrongResult, OSError."""
    found = Ways(size)
    home.mkdir()
    with _outside(home) as ports:
        async with _runtime(home, ports) as runtime:
            for number in range(rounds):
                for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
                    told = await _try(runtime, way, ports, size)
                    found.transfer[way.id].add(number, [told["s"]])
                    found.connection[way.id].add(number, told["times"])
            await _runs(runtime, ports, 8 * rounds, found)
    return found


@dataclass(frozen=True, slots=True)
class _Ports:
    plain: int
    tls: int
    proxy: int
    ca: str

    @property
    def rules(self) -> list[str]:
        return [f"{HOST}:{self.plain},{self.tls}"]


async def _try(runtime: Runtime, way: Way, ports: _Ports, size: int) -> Mapping[str, Any]:
    proxy = {"": 0, "plain": ports.proxy, "gate": 3128}[way.proxy]
    args = {"host": HOST, "address": "" if way.inside else "127.0.0.1", "port": ports.tls if way.tls else ports.plain,
            "proxy": proxy, "tls": way.tls, "ca": ports.ca, "size": size, "connections": 12}  # fmt: skip
    if way.inside:
        run = await runtime.run_code(CLIENT, args, mount_skills=[SKILL] if way.secret else None)
        told: Mapping[str, Any] = run.raise_for_status().output
        return told
    if way.proxy:
        args["host"] = "127.0.0.1"
    return await asyncio.to_thread(_beside, args)


def _beside(args: Mapping[str, Any]) -> Mapping[str, Any]:
    command = [interpreter(), "-I", "-c", _PLAIN, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S)
    if done.returncode:
        raise WrongResult(done.stderr.strip()[-200:])
    told: Mapping[str, Any] = json.loads(done.stdout)
    return told


async def _runs(runtime: Runtime, ports: _Ports, pairs: int, found: Ways) -> None:
    """A run with a policy and one without, in turns, each from a ready sandbox."""
    for number in range(pairs):
        both = [(found.plain, []), (found.policy, ports.rules)]
        for rounds, rules in both if number % 2 else both[::-1]:
            await asyncio.sleep(_SETTLE_S)
            began = time.perf_counter()
            run = await runtime.run_code(SUM.code, SUM.args, network=rules)
            rounds.add(number, [time.perf_counter() - began])
            SUM.check(run.raise_for_status().output)


@contextmanager
def _outside(home: Path) -> Iterator[_Ports]:
    authority, certificate = certify(home, ["127.0.0.1"], [HOST])
    with ExitStack() as stack:
        plain, tls = _started(stack, "server", str(certificate))
        (proxy,) = _started(stack, "proxy")
        yield _Ports(plain, tls, proxy, authority.read_text())


def _started(stack: ExitStack, *words: str) -> Sequence[int]:
    source = str(Path(__file__).with_name("outside.py"))
    process = subprocess.Popen(
        [base_interpreter(), "-I", source, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.wait, _BOUND_S)
    stack.callback(process.stdout.close)
    stack.callback(process.stdin.close)
    return [int(word) for word in process.stdout.readline().split()]


@asynccontextmanager
async def _runtime(home: Path, ports: _Ports) -> AsyncIterator[Runtime]:
    _write_skill(home / "skills" / SKILL, ports)
    network = {"run_code": ports.rules, "hosts": {HOST: ["127.0.0.1"]}, "ca_file": home / "authority.pem"}
    settings = load_settings(
        data_dir=home / "data", skills_dirs=[home / "skills"], network=network, policy={"run_code_secrets": "mounted"}
    )
    async with Runtime(settings=settings) as runtime:
        await runtime.call("secrets.set", {"name": SECRET, "value": "bench-" + "v" * 32})
        run = await runtime.run_code(SUM.code, SUM.args, network=ports.rules)
        if not run.ok:
            raise SkillyardError(run.summary)
        yield runtime


def _write_skill(directory: Path, ports: _Ports) -> None:
    directory.mkdir(parents=True)
    secrets = f'[{{ name = "{SECRET}", delivery = "gate", hosts = ["{HOST}:{ports.tls}"] }}]'
    (directory / "skill.toml").write_text(
        f'name = "{SKILL}"\nversion = "1.0.0"\ndescription = "Has a secret"\nkind = "instruction"\n\n'
        f'[permissions]\nnetwork = ["{HOST}:{ports.tls}"]\nsecrets = {secrets}\n'
    )
    (directory / "SKILL.md").write_text("---\nname: network\ndescription: Has a secret\n---\nIt has one.\n")


def _middle(rounds: Rounds) -> float:
    values = sorted(rounds.samples)
    return values[len(values) // 2]


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
