"""A process that takes hostile input, works on it and reaches nothing else.

It checks values against schemas and reads Python. Work that takes more processor time than it may ends the process, by
a timer that the kernel keeps. Work that takes more memory ends it too. Its server starts another.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
from typing import Any

from skillyard.domain.review.python_facts import facts_of
from skillyard.domain.review.python_words import is_wanted
from skillyard.domain.skill.schema import MOST_ERRORS, breaches
from skillyard.ipc.channel import FrameReader, encode
from skillyard.jailed import REMEMBERED, dialect
from skillyard.sandbox.native.linux import bpf, jail, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers

_LONGEST = 16 * 1024
"""Characters of a message, and of a path: five of each, escaped, fit into an answer."""
_READ = 1 << 20
_RETIRES_AT = 160 * 1024 * 1024
_CALLS = (
    "read", "pread64", "recvfrom", "recvmsg", "sendto", "sendmsg", "write", "close", "poll", "ppoll",
    "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "futex", "getrandom",
    "clock_gettime", "gettimeofday", "setitimer", "sched_yield", "getpid", "gettid",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "tgkill", "exit", "exit_group",
)  # fmt: skip
"""The calls of a computation with one open socket. Every other one is refused, above all open and connect."""


def main(config: dict[str, Any]) -> None:
    """Answers requests until the server hangs up. ``config`` has ``channel``, a descriptor, ``uid``, the user to become
    when it is root's, ``read``, directories of Python's, and ``memory_mb``, the bound of one request."""
    channel = socket.socket(fileno=config["channel"])
    memory = os.open("/proc/self/statm", os.O_RDONLY)
    dialect.is_pattern("^a$")
    dialect.problem({})
    facts_of("import a", is_wanted)
    missing = _confine(config)
    gc.collect()
    gc.freeze()
    _say(channel, {"ready": True, "missing": missing})
    known: dict[str, Any] = {}
    requests = FrameReader()
    while request := _request(channel, requests):
        header, body = request
        signal.setitimer(signal.ITIMER_PROF, header["cpu_s"])
        answer = _checked(known, header, body) if header["job"] == "schema" else _read(body)
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = int(os.pread(memory, 100, 0).split()[1]) * resource.getpagesize() > _RETIRES_AT
        _say(channel, {**answer, "last": last})
        if last:
            return


def _confine(config: dict[str, Any]) -> list[str]:
    """Confines the process for good and names missing walls. Time and memory are bounded in any case."""
    missing: list[str] = []
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("500")
    except OSError as error:
        missing.append(f"oom_score_adj: {error.strerror}")
    missing += jail.enter(config["uid"], tuple(config["read"]), tcp=False)["missing"]
    memory = config["memory_mb"] * 1024 * 1024
    for kind, limit in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    nr = numbers(kernel.ARCH)
    program = seccomp.head(kernel.ARCH) + bpf.search(nr[name] for name in _CALLS if name in nr)
    try:
        kernel.install_filter(seccomp.assemble(program))
    except OSError as error:
        missing.append(str(error))
    return missing


def _request(channel: socket.socket, requests: FrameReader) -> tuple[dict[str, Any], bytes] | None:
    """Returns the next request; None when the server is gone."""
    while (frame := requests.next()) is None:
        data = channel.recv(_READ)
        if not data:
            return None
        requests.feed(data)
    return frame[0], frame[1]


def _say(channel: socket.socket, answer: dict[str, Any]) -> None:
    channel.sendall(encode({}, json.dumps(answer).encode()))


def _read(source: bytes) -> dict[str, Any]:
    return facts_of(source.decode(), is_wanted)._asdict()


def _checked(known: dict[str, Any], header: dict[str, Any], body: bytes) -> dict[str, Any]:
    key, schema, value = header["key"], body[: header["schema"]], body[header["schema"] :]
    try:
        if schema:
            if len(known) >= REMEMBERED:
                known.clear()
            known[key] = _compiled(schema)
        validator = known[key]
        if isinstance(validator, str):
            return {"unfit": validator}
        return {"errors": _errors(validator, json.loads(value))}
    except RecursionError:
        return {"unfit": "it or the value is nested too deep"}
    except MemoryError:
        os._exit(1)
    except ValueError as error:
        return {"unfit": _whole(getattr(error, "message", str(error)), "it is not a valid schema")}


def _compiled(raw: bytes) -> Any:
    """Returns the validator, or the reason why there is none."""
    schema = json.loads(raw)
    for breach in breaches(schema):
        return breach.message
    try:
        return dialect.validator(schema)
    except ValueError as error:
        return _whole(getattr(error, "message", str(error)), "it is not a valid schema")


def _errors(validator: Any, value: Any) -> list[tuple[list[str | int], str]]:
    errors: list[tuple[list[str | int], str]] = []
    for error in validator.iter_errors(value):
        path = list(error.instance_path)
        if sum(len(part) for part in path if isinstance(part, str)) > _LONGEST:
            path = []
        errors.append((path, _whole(error.message, f"does not meet '{error.kind.name}'")))
        if len(errors) == MOST_ERRORS:
            break
    return errors


def _whole(text: str, otherwise: str) -> str:
    """Returns the text whole or another one: the host takes secrets out before it cuts."""
    return text if len(text) <= _LONGEST else otherwise
