"""Measures the processor time of runs, in turns with a prototype and other installations."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from skillyard.bench import at_work, prototype
from skillyard.bench.idle import proc_text
from skillyard.bench.subject import Skipped, WrongResult
from skillyard.bench.turns import Rounds, median

OURS, PROTOTYPE, AGAINST = "skillyard", "rough prototype", "against"
_NAME = "skillyard-bench"
ACCOUNTS = ("/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup")
_PROCESS_CLOCK = 2
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.5
_BUSY = 0.2
"""Processors that others may use before a measurement is not one."""
_END_S = 20.0
_WARM_UP = 30


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run: ``ready`` sandboxes, runs a round, callers, the pause before each run."""

    title: str
    ready: bool
    runs: int
    callers: int = 1
    pause_s: float = 0.0

    def order(self) -> dict[str, float]:
        return {"runs": self.runs, "callers": self.callers, "pause_s": self.pause_s}


MODES = (
    Mode("ready, with pauses", True, 20, pause_s=0.06),
    Mode("on demand, with pauses", False, 20, pause_s=0.06),
    Mode("on demand, back to back", False, 60),
    Mode("8 at once", False, 160, callers=8),
)


def others_at_work(seconds: float = _LOOK_S) -> float:
    """Returns how many processors others use while we wait."""
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / _TICKS / seconds


def _busy_ticks() -> int:
    fields = [int(word) for word in proc_text("stat").split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4]  # all but idle and iowait


class Account:
    """The processor time of a tree of processes, by a control group or by their clocks."""

    def __init__(self, name: str) -> None:
        self.place = _account(name)
        self.way = "control group" if self.place else "clocks of processes"

    def join(self) -> str:
        """Returns the file to which a process writes 0 to be counted, or nothing."""
        return str(self.place / "cgroup.procs") if self.place else ""

    def seconds(self, first: int) -> float:
        if self.place is None:
            return sum(_with_children(pid) for pid in _tree(first))
        usage = self.place / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        return int((self.place / "cpu.stat").read_text().split()[1]) / 1e6

    def members(self, first: int) -> list[int]:
        """Returns the processes that are counted now."""
        return [int(word) for word in (self.place / "cgroup.procs").read_text().split()] if self.place else _tree(first)

    def close(self) -> None:
        deadline = time.monotonic() + _END_S
        while self.place is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.place.rmdir()
                self.place = None
                return
            time.sleep(0.05)


def _account(name: str) -> Path | None:
    for base in map(Path, ACCOUNTS):
        counting = (base / "cpuacct.usage").exists() or (base / "cgroup.controllers").exists()
        if counting:
            _sweep(base)
            with contextlib.suppress(OSError):
                place = base / name
                place.mkdir(0o700)
                return place
    return None


def _sweep(base: Path) -> None:
    """Removes the control groups of benchmarks that were killed."""
    for group in base.glob(f"{_NAME}-*"):
        pid = group.name.removeprefix(f"{_NAME}-").partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):  # one with processes in it stays
                group.rmdir()


def _tree(first: int) -> list[int]:
    found, queue = [], [first]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += [int(word) for word in proc_text(f"{pid}/task/{pid}/children").split()]
    return found


def _with_children(pid: int) -> float:
    fields = proc_text(f"{pid}/stat").rpartition(")")[2].split()
    return (_clock(pid) + (int(fields[13]) + int(fields[14])) / _TICKS) if fields else 0.0


def _clock(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        return 0.0


@dataclass(slots=True)
class Worker:
    """A process that does runs as ordered, counted by an account of its own."""

    process: subprocess.Popen[str]
    account: Account

    def do(self, order: Mapping[str, float]) -> dict[str, Any]:
        """Returns the answer with ``cpu`` seconds, and ``parts`` of them by process. Raises WrongResult."""
        stdin, stdout = _pipes(self.process)
        before, parts = self.account.seconds(self.process.pid), self._parts()
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
        except (OSError, ValueError) as error:
            self.process.kill()
            said = self.process.stderr.read() if self.process.stderr else ""
            raise WrongResult(said.strip()[-300:] or "it ended") from error
        time.sleep(0.05)  # what follows the last answer counts too
        answer["cpu"] = self.account.seconds(self.process.pid) - before
        after = self._parts()
        answer["parts"] = {name: after[name] - parts.get(name, 0.0) for name in after}
        answer["parts"]["sandboxes"] = answer["cpu"] - sum(answer["parts"].values())
        return answer

    def _parts(self) -> dict[str, float]:
        """Returns the time of each process that outlives a run."""
        found: dict[str, float] = {}
        for pid in self.account.members(self.process.pid):
            said = proc_text(f"{pid}/cmdline")
            name = (
                "server" if pid == self.process.pid
                else "zygote" if ".zygote import" in said
                else "keeper" if ".ground import" in said
                else ""
            )  # fmt: skip
            if name:
                found[name] = found.get(name, 0.0) + _clock(pid)
        return found

    def close(self) -> None:
        stdin, _ = _pipes(self.process)
        with contextlib.suppress(OSError):
            stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.account.close()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


@contextmanager
def _worker(name: str, command: Sequence[str]) -> Iterator[Worker]:
    account = Account(f"{_NAME}-{os.getpid()}-{name}")
    joins = account.join()
    wrapped = ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', joins, *command] if joins else command
    process = subprocess.Popen(
        wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    worker = Worker(process, account)
    try:
        yield worker
    finally:
        worker.close()


@dataclass(slots=True)
class Processor:
    """Wall seconds and processor seconds a run, by subject and mode. ``busy`` is what others used before and after."""

    way: str = ""
    busy: float = 0.0
    wall: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    cpu: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    rate: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    parts: dict[str, dict[str, Rounds]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def too_busy(self) -> bool:
        """Whether others used so much that no budget can be judged."""
        return self.busy > _BUSY

    def note(self, subject: str, mode: Mode, number: int, answer: Mapping[str, Any]) -> None:
        runs = len(answer["times"])
        _rounds(self.wall, subject, mode.title).add(number, answer["times"])
        _rounds(self.cpu, subject, mode.title).add(number, [answer["cpu"] / runs])
        _rounds(self.rate, subject, mode.title).add(number, [runs / answer["took"]])
        if mode.callers > 1:
            for name, seconds in answer["parts"].items():
                _rounds(self.parts, subject, name).add(number, [seconds / runs])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields one object for each mode and subject, with ratios of ours to the other's."""
        for mode in MODES:
            for subject, found in self.cpu.items():
                if mode.title not in found:
                    continue
                own = [table[OURS][mode.title] for table in (self.wall, self.cpu, self.rate)]
                other = [table[subject][mode.title] for table in (self.wall, self.cpu, self.rate)]
                ratios = [mine.ratio(theirs) for mine, theirs in zip(own, other, strict=True)]
                yield {
                    "mode": mode.title,
                    "subject": subject,
                    "p50_ms": round(median(other[0].samples) * 1000, 3),
                    "cpu_ms": round(median(other[1].samples) * 1000, 3),
                    "runs_per_s": round(median(other[2].samples), 1),
                    "ours_p50": _short(ratios[0]),
                    "ours_cpu": _short(ratios[1]),
                    "ours_rate": _short(ratios[2]),
                }

    def profile(self) -> Iterator[dict[str, Any]]:
        """Yields the processor time of a run by process, at eight callers at once."""
        for subject, found in self.parts.items():
            if subject != PROTOTYPE:
                yield {"subject": subject} | {
                    name: round(median(rounds.samples) * 1000, 3) for name, rounds in found.items()
                }

    def as_dict(self) -> dict[str, Any]:
        return {
            "counted_by": self.way,
            "others_processors": round(self.busy, 3),
            "too_busy_to_judge": self.too_busy,
            "rows": list(self.rows()),
            "profile": list(self.profile()),
        }


def _short(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def _rounds(table: dict[str, dict[str, Rounds]], subject: str, name: str) -> Rounds:
    return table.setdefault(subject, {}).setdefault(name, Rounds())


def measure(home: Path, rounds: int, against: Path | None = None) -> Processor:
    """Measures all subjects in turns. ``against`` is another virtual environment. Raises WrongResult."""
    found = Processor(busy=others_at_work())
    with ExitStack() as stack:
        workers = list(_open(stack, home, against, found))
        for number in range(rounds):
            for mode in MODES:
                first = number % len(workers)
                for subject, pair in (*workers[first:], *workers[:first]):
                    found.note(subject, mode, number, pair[mode.ready].do(mode.order()))
        found.way = workers[0][1][True].account.way
    found.busy = max(found.busy, others_at_work())
    return found


def _open(
    stack: ExitStack, home: Path, against: Path | None, found: Processor
) -> Iterator[tuple[str, dict[bool, Worker]]]:
    """Yields each subject with its workers that hold sandboxes ready, and that do not."""
    commands = {OURS: [sys.executable, "-I", "-c", _source(at_work.__file__)]}
    if against is not None:
        commands[AGAINST] = [str(against / "bin" / "python"), "-I", "-c", _source(at_work.__file__)]
    if os.geteuid() == 0 and os.uname().machine == "x86_64":
        commands[PROTOTYPE] = [sys.executable, "-I", "-S", "-c", _source(prototype.__file__)]
    else:
        found.skipped.append(Skipped("prototype", "the rough prototype", "it needs root and x86_64"))
    for number, (subject, command) in enumerate(commands.items()):
        pair = {}
        for ready in (True, False):
            place = [] if subject == PROTOTYPE else [str(home / f"{number}-{ready}")]
            name = f"{number}{'r' if ready else 'd'}"
            pair[ready] = stack.enter_context(_worker(name, [*command, *place, "4" if ready else "0"]))
            pair[ready].do({"runs": _WARM_UP, "callers": 1, "pause_s": 0.02})
        yield subject, pair


def _source(file: str | None) -> str:
    return Path(file or "").read_text(encoding="utf-8")
