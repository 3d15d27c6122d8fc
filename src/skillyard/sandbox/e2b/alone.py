"""Machines whose only user is not root: the way to their stage, and the order for it.

Programs have the user of the agent there, so they can end it, and their sandbox with it. They can neither read nor
trace it, nor change its guest. At the start of a second channel, after a failure, they can get in between; then the
account of their own sandbox is theirs.
"""

from __future__ import annotations

import hmac
import json
import resource
import shlex
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.e2b import one_user
from skillyard.sandbox.e2b.account import checked, told_by
from skillyard.sandbox.e2b.channel import CommandChannel
from skillyard.sandbox.e2b.order import SPARE, order
from skillyard.sandbox.e2b.provider import ROOT, Provider
from skillyard.sandbox.e2b.template import program
from skillyard.sandbox.guest_argv import guest_bundle

if TYPE_CHECKING:
    from e2b import AsyncSandbox

_COMMAND = f"exec python3 -I -S -c {shlex.quote(one_user.BOOT)} {one_user.MARK}"
_HOME = {"HOME": "/nonexistent"}
"""The login shell of a command reads files of this directory, which foreign code can write in the usual one."""
_BOUND_S = 60.0


async def has_root(provider: Provider, machine: AsyncSandbox) -> bool:
    """Returns whether a machine runs commands as root. Raises SandboxGone, BackendAway, SandboxFault."""
    import e2b

    with provider.told():
        try:
            await machine.commands.run("true", user=ROOT, cwd="/", timeout=_BOUND_S)
        except (e2b.AuthenticationException, e2b.InvalidArgumentException):
            return False
    return True


async def account(provider: Provider, machine: AsyncSandbox) -> Mapping[str, Any]:
    """Returns the account of a machine. Raises SandboxFault."""
    channel = await _opened(provider, machine, {"op": "look"})
    try:
        told = dict(checked(told_by(await channel.line(), "the user 'root' is refused")))
    finally:
        channel.close()
        await channel.closed()
    with provider.told():
        size = (await machine.get_info()).memory_mb
    return told | {"memory_mb": min(told["memory_mb"], size), "groups": []}


def refuse(spec: SandboxSpec, template: str) -> None:
    """Raises InvalidInput for content, which foreign code could change there."""
    rule = f"machines of the template '{template}' have one user, so nothing can be shown read-only in them"
    if spec.mounts:
        raise InvalidInput("mounts", rule, spec.mounts[0].target)
    if spec.environment.packages is not None:
        raise InvalidInput("environment", rule, spec.environment.name)


async def begun(
    provider: Provider,
    machine: AsyncSandbox,
    spec: SandboxSpec,
    key: bytes,
    seen: Mapping[str, Any],
    is_over: Callable[[], bool],
) -> CommandChannel:
    """Has the stage start the agent; returns the first channel to it."""
    made = order(spec, key.hex(), "", int(seen["processors"]))
    agent = made["agent"]
    agent["limits"][str(resource.RLIMIT_NPROC)] = spec.limits.pids + SPARE + 1
    agent["filters"] = [] if seen["filtered"] else made["fixed"]["filters"][seen["machine"]]
    given = {"op": "start", "start": made["start"], "agent": json.dumps(agent), "socket": _socket(key)}
    return await _opened(provider, machine, given, is_over, _guest())


async def joined(provider: Provider, machine: AsyncSandbox, key: bytes, is_over: Callable[[], bool]) -> CommandChannel:
    """Opens a further channel to the agent."""
    return await _opened(provider, machine, {"op": "join", "socket": _socket(key)}, is_over)


async def _opened(
    provider: Provider,
    machine: AsyncSandbox,
    given: Mapping[str, Any],
    is_over: Callable[[], bool] = bool,
    guest: bytes = b"",
) -> CommandChannel:
    channel = await CommandChannel.open(provider, machine, _COMMAND, is_over, user=None, envs=_HOME)
    for block in (program("one_user.py"), json.dumps(given).encode(), *([guest] if guest else [])):
        channel.write(b"%08x" % len(block) + block)
    return channel


def _socket(key: bytes) -> str:
    """Returns the name of the agent's socket. It tells nothing of the key."""
    return f"skillyard-{hmac.digest(key, b'socket', 'sha256').hex()[:32]}"


@cache
def _guest() -> bytes:
    return zlib.compress(guest_bundle(), 6)
