"""Idle connections to services: whose they are, how many, and when a port has none."""

from __future__ import annotations

import pytest

from skillyard.engine.services.idle import EACH, Connection, IdleStreams, Port
from skillyard.engine.tasks import Tasks

pytestmark = pytest.mark.anyio
HERE, ELSEWHERE = Port("run_a", 80, "one"), Port("run_a", 81, "one")


class Line:
    """A connection without a far end. ``heard`` says that bytes came which nobody asked for."""

    def __init__(self) -> None:
        self.heard = self.closed = False

    async def read(self, most: int = 65536) -> bytes:
        return b"x"[:most]

    async def write(self, data: bytes) -> None:
        assert data

    async def end(self) -> None:
        return

    def quiet(self) -> bool:
        return not self.heard and not self.closed

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
async def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
async def idle(tasks: Tasks) -> IdleStreams:
    return IdleStreams(tasks, 2 * EACH)


def connection(idle: IdleStreams, port: Port, line: Line) -> Connection:
    async def dial() -> Line:
        return Line()

    return Connection(idle, port, dial, line, used=False)


async def test_one_is_taken_once_by_its_own_principal(idle: IdleStreams, tasks: Tasks) -> None:
    line = Line()
    assert idle.give(HERE, line)
    assert idle.take(ELSEWHERE) is None
    assert idle.take(Port("run_a", 80, "two")) is None
    assert idle.take(HERE) is line
    assert idle.take(HERE) is None


async def test_one_that_is_not_quiet_serves_nobody(idle: IdleStreams, tasks: Tasks) -> None:
    line = Line()
    assert idle.give(HERE, line)
    line.heard = True
    assert idle.take(HERE) is None
    assert not idle.give(HERE, line)
    await tasks.drain()
    assert line.closed


async def test_the_oldest_goes_when_there_are_many(idle: IdleStreams, tasks: Tasks) -> None:
    lines = [Line() for _ in range(EACH + 1)]
    assert all(idle.give(HERE, line) for line in lines)
    await tasks.drain()
    assert [line.closed for line in lines] == [True, *[False] * EACH]
    others = [Line() for _ in range(EACH + 3)]
    assert all(idle.give(Port(f"run_{n}", 80, "one"), line) for n, line in enumerate(others))
    await tasks.drain()
    assert sum(line.closed for line in [*lines, *others]) == 1 + 3
    idle.close()
    await tasks.drain()
    assert all(line.closed for line in [*lines, *others])


async def test_a_port_that_keeps_others_waiting_has_none(idle: IdleStreams, tasks: Tasks) -> None:
    """It may serve one connection at a time, and wait for us on the idle one."""
    kept, elsewhere = Line(), Line()
    assert idle.give(HERE, kept)
    assert idle.give(ELSEWHERE, elsewhere)
    idle.late(HERE.place)
    await tasks.drain()
    assert (kept.closed, elsewhere.closed) == (True, False)
    idle.came(HERE.place)
    assert not idle.give(HERE, Line())
    idle.late(ELSEWHERE.place)
    idle.came(ELSEWHERE.place)
    idle.late(other := ("run_b", 80))
    assert not idle.give(Port(*other, "one"), Line())
    idle.came(other)
    assert idle.give(Port(*other, "one"), Line())
    idle.close()
    await tasks.drain()


async def test_nothing_is_kept_unasked_or_when_it_is_off(idle: IdleStreams, tasks: Tasks) -> None:
    line = Line()
    await connection(idle, HERE, line).leave()
    assert (line.closed, idle.take(HERE)) == (True, None)
    wanted = connection(idle, HERE, other := Line())
    wanted.keep()
    await wanted.leave()
    assert idle.take(HERE) is other
    off = IdleStreams(tasks, 0)
    unkept = connection(off, HERE, last := Line())
    unkept.keep()
    await unkept.leave()
    assert last.closed
