"""Mutants of the gate and of what it decides by: the gate's process runs from the copy, the server from the real
one."""

from __future__ import annotations

from tests.attacks.verify.mutants import Mutant

ADDRESS, POLICY = "domain/network/address.py", "domain/network/policy.py"
TLS, HEAD = "gate/tls/guard.py", "gate/http/head.py"
WALLS, SANDBOXES = "sandbox/native/inside/walls.py", "sandbox/native/keeper/sandboxes.py"

MUTANTS = (
    Mutant(
        "no_floor", ("rule: addresses below the floor stay closed",), "no address is below the floor",
        ("egress-floor",), {ADDRESS: "def closed(address, own=()):\n    return ''"}, network=True, short=True,
    ),
    Mutant(
        "any_name", ("rule: a run reaches what its policy names",), "the gate allows every name and address",
        ("egress-names", "egress-floor"),
        {POLICY: "Policy.ask = Policy.check = lambda self, *asked: Decision(True)"}, network=True,
    ),
    Mutant(
        "any_port", ("rule: a run reaches what its policy names",), "a rule is for every port of its host",
        ("egress-ports",), {"domain/network/rule.py": "Rule.has_port = lambda self, port: True"}, network=True,
    ),
    Mutant(
        "any_server_name", ("rule: what is said on a connection is held to its host",), "any server name passes",
        ("egress-server-names",), {TLS: "def why_not(hello, host):\n    return ''"}, network=True,
    ),
    Mutant(
        "any_host", ("rule: what is said on a connection is held to its host",), "any Host field passes",
        ("egress-hosts",), {HEAD: "def check_host(request, host, port, default_port):\n    return None"}, network=True,
    ),
    Mutant(
        "answering", ("rule: the name server knows what the policy names",), "every name is answered",
        ("egress-questions",), {POLICY: "Policy.answers = lambda self, name: True"}, network=True,
    ),
    Mutant(
        "shared_gate", ("net_namespace",), "sandboxes share a network namespace, and so their ways out",
        ("egress-neighbour",),
        {
            WALLS: "NAMESPACES = NAMESPACES & ~kernel.CLONE_NEWNET",
            SANDBOXES: "Sandboxes._listen_ahead = lambda self, sandbox: None",  # else the next one has the ports
        },
        network=True,
    ),
)  # fmt: skip
