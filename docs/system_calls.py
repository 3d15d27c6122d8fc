"""The page ``system-calls.md``: from the tables that the filters are made of, and from ``peer-filters.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.linux import call_arguments, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers

ARCHES = ("x86_64", "aarch64")
PEERS = Path(__file__).with_name("peer-filters.toml")
OWN = {name for group in seccomp.ALLOWED for name in group.calls}

HEAD = """# System calls

What foreign code can ask of the host's kernel under the native backend. Everything that is not named here is refused.
The lists are `src/skillyard/sandbox/native/linux/seccomp.py` and
`src/skillyard/sandbox/native/linux/call_arguments.py`; the filters are made of them, and
`tests/conformance/sandbox/test_surface.py` holds this page to what the filters do, to what a running sandbox answers to
each number, and the count of calls to a ceiling.
"""

ANSWERS = """## How a call is answered

- **It is made**: the calls of the groups below, with the arguments that the rules below let through.
- **`ENOSYS`**: the calls [that seem not to exist](#calls-that-seem-not-to-exist), and every number above {newest} on
  {arches}, which is newer than this list.
- **`EPERM`**: every other call, among them what [built the walls](#calls-that-built-the-walls). `EAFNOSUPPORT` and the
  like where a rule says so.
- **The process ends with `SIGSYS`**: the entry of another architecture (`int 0x80` on x86_64) and the numbers of x32,
  which mean other calls.

The filter looks at numbers and at arguments in registers, not at memory. What a path or a buffer may name is for the
other walls: mounts, Landlock, namespaces and empty capability sets.
"""

COMPARED = """## Beside others

A call that is let through with some arguments only counts like any other. Only skillyard's and Docker's rows are about
foreign code: it meets this filter and then the host's kernel. gVisor and Firecracker put a kernel of their own between,
and the filter holds that kernel or its monitor, when it has been taken over.
"""


def system_calls_page(note: str) -> str:
    newest = max(max(numbers(arch).values()) for arch in ARCHES)
    parts = [
        note,
        HEAD,
        *_counts(),
        ANSWERS.format(newest=newest, arches=" and ".join(ARCHES)),
        *_groups(),
        *_rules(),
        *_gone(),
        COMPARED,
        *_compared(),
    ]
    return "\n".join(parts)


def reachable(arch: str) -> set[str]:
    """Names that some argument is let through with."""
    return OWN & numbers(arch).keys()


def _counts() -> Iterator[str]:
    by_argument = {name for rule in (*call_arguments.RULES, *call_arguments.CLOSING_RULES) for name in rule.calls}
    yield "| | calls that can be reached | of them with some arguments only | calls that Linux has |"
    yield "| --- | --- | --- | --- |"
    for arch in ARCHES:
        ours = reachable(arch)
        yield f"| {arch} | **{len(ours)}** | {len(ours & by_argument)} | {len(numbers(arch))} |"
    yield ""


def _groups() -> Iterator[str]:
    yield "## Calls by group\n\nThose marked * do not exist on aarch64; all exist on x86_64.\n"
    yield "| group | why | calls |\n| --- | --- | --- |"
    for group in seccomp.ALLOWED:
        yield f"| {group.name} | {group.why} | {', '.join(_marked(name) for name in group.calls)} |"
    yield ""


def _marked(name: str) -> str:
    return f"`{name}`" + ("" if name in numbers("aarch64") else "\\*")


def _rules() -> Iterator[str]:
    yield "## Rules for arguments\n\nWhere nothing is said, the answer to others is `EPERM`.\n"
    yield from _rule_table((*call_arguments.RULES, *call_arguments.CLOSING_RULES))
    yield "\nAnd where no cgroup controller counts memory, as usual for an ordinary user:\n"
    yield from _rule_table(call_arguments.UNCOUNTED_RULES)
    yield "\nAnd in a [jail](jail.md) that shows directories of the host:\n"
    yield from _rule_table(call_arguments.JAIL_RULES)
    yield ""


def _rule_table(rules: Iterable[call_arguments.Rule]) -> Iterator[str]:
    yield "| call | passes | why |\n| --- | --- | --- |"
    for rule in rules:
        yield f"| {_names(rule.calls)} | {rule.says} | {rule.why} |"


def _gone() -> Iterator[str]:
    yield "## Calls that seem not to exist\n\nLibraries fall back on `ENOSYS` to a way that is allowed.\n"
    yield from _by_reason(seccomp.ABSENT)
    yield "\n## Calls that built the walls\n"
    large, closing = (len(program("x86_64")) for program in (seccomp.large_filter, seccomp.closing_filter))
    yield "The zygote has them until a sandbox's walls stand; then the closing filter takes them away, for good."
    yield f"On x86_64 it has {closing} instructions, the large one {large}.\n"
    yield from _by_reason(seccomp.BUILDING)
    yield "\nUntil then, of their arguments:\n"
    yield from _rule_table(call_arguments.BUILDING_RULES)
    yield "\n## Calls that the kernel lets through by itself\n"
    yield from _by_reason(seccomp.UNFILTERED)
    yield ""


def _by_reason(calls: Mapping[str, str]) -> Iterator[str]:
    yield "| calls | why |\n| --- | --- |"
    for why in dict.fromkeys(calls.values()):
        yield f"| {_names(name for name, reason in calls.items() if reason == why)} | {why} |"


def _compared() -> Iterator[str]:
    with PEERS.open("rb") as file:
        peers: dict[str, dict[str, Any]] = tomllib.load(file)
    yield "| filter | x86_64 | aarch64 | let through there, not here (x86_64) | here, not there | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    count = " | ".join(str(len(reachable(arch))) for arch in ARCHES)
    yield f"| **skillyard** | **{count.replace(' | ', '** | **')}** | | | what foreign code may call |"
    for peer in peers.values():
        theirs = {arch: _calls_of(peer, arch) for arch in ARCHES}
        there, here = theirs["x86_64"] - reachable("x86_64"), reachable("x86_64") - theirs["x86_64"]
        counts = " | ".join(str(len(theirs[arch])) for arch in ARCHES)
        yield f"| {peer['name']} | {counts} | {len(there)} | {len(here)} | what {peer['what']}. {peer['note']} |"
    yield ""
    docker, ours = _calls_of(peers["docker"], "x86_64"), reachable("x86_64")
    yield f"Docker's profile lets through and skillyard does not: {_names(sorted(docker - ours))}.\n"
    yield f"skillyard lets through and Docker's profile does not: {_names(sorted(ours - docker)) or 'none'}.\n"
    yield "Sources: " + "; ".join(_source(peer) for peer in peers.values()) + "."


def _calls_of(peer: Mapping[str, Any], arch: str) -> set[str]:
    return {*peer["both"].split(), *peer[arch].split()}


def _source(peer: Mapping[str, Any]) -> str:
    return f"{peer['project']} at {peer['commit'][:12]} of {peer['date']} ({peer['version']}), {_names(peer['files'])}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
