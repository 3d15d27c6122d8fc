"""The probe of the opensandbox backend: a program tries to get out of a sandbox."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from skillyard.domain.sandbox import guarantees
from skillyard.domain.sandbox.guarantees import WALLS, Level, Probe, Protection
from skillyard.sandbox.oci.probe import LOOK as _ROUND
from skillyard.sandbox.oci.probe import UNCOUNTED, spaces_of_host, walls_of

NAME = "opensandbox"
absent = partial(guarantees.absent, NAME)
WITHOUT = frozenset({"user_namespace", "landlock", "private_proc", "disk"})
"""The walls and limits that the server's API has no word for."""
LOOK = _ROUND.replace('"boot": text', '"ways": ways(), "languages": languages(), "told": told(), "boot": text').replace(
    "import site\n",
    """import errno, shutil, site, struct
def languages():
    programs = {"bash": "bash", "python": "python3", "javascript": "node", "typescript": "node"}
    return [language for language, program in programs.items() if shutil.which(program)]
def told():
    "Returns what /proc tells of the host's kernel, keys and interrupts."
    dangerous = ("config.gz", "interrupts", "iomem", "kallsyms", "kcore", "key-users", "keys", "timer_list")
    return [name for name in dangerous if os.path.isfile("/proc/" + name) and readable("/proc/" + name)]
def readable(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
def tried(host, port, bound=1.5):
    "Returns the reason why nothing was met there; empty where something was, which a refusal tells, too."
    try:
        with socket.create_connection((host, port), bound):
            return ""
    except ConnectionRefusedError:
        return "refused" if host == "127.0.0.1" else ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") or type(error).__name__
def resolved(server, bound=1.5):
    "Sends a question about example.com, and waits for any answer."
    question = struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + b"\\7example\\3com\\0" + struct.pack(">HH", 1, 1)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.settimeout(bound)
            asked.sendto(question, (server, 53))
            answer = asked.recv(512)
            return "" if len(answer) > 7 and (answer[3] & 15 == 0 and answer[6:8] != b"\\0\\0") else "no address"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") or type(error).__name__
def changed():
    "Asks the sidecar to allow everything, without its token."
    import http.client
    try:
        asked = http.client.HTTPConnection("127.0.0.1", 18080, timeout=1.5)
        rules = '[{"action": "allow", "target": "example.com"}]'
        asked.request("PATCH", "/policy", rules, {"Content-Type": "application/json"})
        status = asked.getresponse().status
        return "" if status < 400 else str(status)
    except OSError as error:
        return type(error).__name__
def ways():
    servers = [line.split()[1] for line in text("/etc/resolv.conf").splitlines() if line.startswith("nameserver ")]
    routes = [line.split() for line in text("/proc/self/net/route").splitlines()[1:]]
    gates = [socket.inet_ntoa(struct.pack("<I", int(route[2], 16))) for route in routes if route[1] == "00000000"]
    host, port = sys.argv[1], int(sys.argv[2])
    found = {"public": (tried, "1.1.1.1", 443), "execd": (tried, "127.0.0.1", 44772)}
    found |= {"server": (tried, host, port)} if host else {}
    found |= {"gateway " + gate: (tried, gate, port) for gate in gates}
    found |= {"dns " + server: (resolved, server) for server in servers[:2] + ["8.8.8.8"]}
    found["policy"] = (changed,)
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        asked = {name: pool.submit(*way) for name, way in found.items()}
        return {name: one.result() for name, one in asked.items()}
""",
)
_FAR = "198.51.100.1"
"""An address of no host: nothing is sent there."""
_NOT_SEEN = "it was not in force in a test sandbox"
_WHY = {
    "user_namespace": ("the server's containers share one", "use the isolation 'native'"),
    "landlock": ("containers do not have it", "use the isolation 'native'"),
}
_PROC_MEND = (
    "use the isolation 'oci' or 'native'; an engine has its list of hidden files, and the server no word for it"
)
_PROVIDED = "found in a test sandbox"
_NET_MEND = (
    'give the server an egress sidecar with [egress] mode = "dns+nft" and [docker] network_mode = "bridge" '
    "(docs/opensandbox.md)"
)


async def address_of(host: str) -> str:
    """Returns the address at which a sandbox would meet the server: not that of a loopback.

    The names of this host's loopback, such as ``localhost``, mean a sandbox's own inside it, where our agent listens.
    It is empty where this host has no other address; the gateway is tried in any case.
    """
    try:
        [first, *_] = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # only a proxy of ours knows it
        return host
    address = ipaddress.ip_address(first[4][0])
    if not address.is_loopback and not address.is_unspecified:
        return str(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((_FAR, 9))
        return str(asked.getsockname()[0])
    return ""


def judge(
    seen: Mapping[str, Any],
    inside: Mapping[str, Any],
    wanted: Mapping[str, str],
    facts: Mapping[str, str],
    egress: Protection,
) -> Probe:
    """Returns the probe, from what :data:`LOOK` and the door told.

    ``wanted`` are the bounds that were asked for, as the kernel writes them. All is the server's word.
    """
    open_ = sorted(name for name, why in seen["ways"].items() if not why)
    held = walls_of({**seen, "interfaces": ["lo"]}, spaces_of_host()) | {
        "seccomp": "Seccomp:\t2" in str(seen["status"])
    }
    walls = {name: _wall(name, held.get(name, False)) for name in WALLS}
    if told_of_host := [str(name) for name in seen["told"]]:
        why = f"its /proc tells of the host: {', '.join(told_of_host)[:200]}"
        walls["private_proc"] = Protection(Level.MISSING, why=why, mend=_PROC_MEND)
    walls["own_uid"] = Protection(Level.PROVIDER, by="programs of each sandbox have a user id of their own, by chance")
    if open_:
        why = f"a test sandbox reached: {', '.join(open_)[:200]}"
        walls["net_namespace"] = Protection(Level.MISSING, why=why, mend=_NET_MEND)
    elif held["net_namespace"]:
        walls["net_namespace"] = Protection(Level.PROVIDER, by=f"{len(seen['ways'])} ways out were tried, and denied")
    told = dict(facts) | {
        "guest_kernel": str(seen["release"])[:100],
        "python": ".".join(map(str, inside["python"])),
        "languages": ", ".join(map(str, seen["languages"]))[:100],
        "denied": ", ".join(f"{name} ({why})" for name, why in sorted(seen["ways"].items()) if why)[:500],
    }
    abilities = {"forwarding": Protection(Level.PROVIDER, by="the agent connects inside"), "egress": egress}
    return Probe(NAME, True, walls | _limits(seen, wanted), told, abilities)


def _wall(name: str, stands: bool) -> Protection:
    if stands:
        return Protection(Level.PROVIDER, by=_PROVIDED)
    why, mend = _WHY.get(name, (_NOT_SEEN, "see [docker] in the server's configuration (docs/opensandbox.md)"))
    return Protection(Level.MISSING, why=why, mend=mend)


def _limits(seen: Mapping[str, Any], wanted: Mapping[str, str]) -> dict[str, Protection]:
    mend = "run the server on an engine with control groups"
    quota, _, period = str(seen["cpus"]).partition(" ")
    cpus = int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0
    in_force = {"memory": seen["memory"] == wanted["memory"], "cpus": abs(cpus - float(wanted["cpus"])) < 0.02}
    groups = {"memory": UNCOUNTED} if not seen["counts_queues"] else {}
    found = {
        name: Protection(Level.PROVIDER, by=groups.get(name, "a control group of the container"))
        if held
        else Protection(Level.MISSING, why=_NOT_SEEN, mend=mend)
        for name, held in in_force.items()
    }
    found["pids"] = Protection(Level.PROVIDER, by="a resource limit of the sandbox's own user id")
    found["disk"] = Protection(
        Level.MISSING, why="the server's API has no limit for files", mend="use the isolation 'oci' or 'native'"
    )
    for name in ("timeout", "output"):
        found[name] = Protection(Level.PROVIDER, by="the agent watches and kills")
    return found
