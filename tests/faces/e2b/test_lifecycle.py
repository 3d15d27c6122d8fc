"""The lifecycle of sandboxes, by the unmodified SDK of E2B."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from e2b import AsyncSandbox, Sandbox, SandboxNotFoundException, SandboxQuery, SandboxState
from e2b.exceptions import AuthenticationException, SandboxException, SandboxNotRunningException

from tests.faces.e2b.conftest import Yard


def test_a_sandbox_is_made_told_and_ended(yard: Yard) -> None:
    made = yard.create(metadata={"userId": "7", "Zweck": "prüfen"}, timeout=90)
    told = made.get_info()
    assert told.sandbox_id == made.sandbox_id
    assert told.metadata == {"userId": "7", "Zweck": "prüfen"}
    assert told.state is SandboxState.RUNNING
    assert told.template_id == "base"
    assert 60 < (told.end_at - datetime.now(UTC)).total_seconds() <= 90
    assert told.memory_mb == 512
    assert made.is_running()
    assert made.kill()
    assert not made.kill()
    assert not made.is_running()
    with pytest.raises(SandboxNotFoundException):
        made.get_info()
    with pytest.raises(SandboxNotRunningException):
        made.commands.run("true")


def test_several_are_listed_by_pages_and_filters(yard: Yard) -> None:
    made = [yard.create(metadata={"series": "s", "n": str(n)}) for n in range(3)]
    ids = [each.sandbox_id for each in made]
    try:
        query = SandboxQuery(metadata={"series": "s"})
        pages, paginator = [], Sandbox.list(query=query, limit=2, **yard.opts)
        while paginator.has_next:
            pages.append([each.sandbox_id for each in paginator.next_items()])
        assert [len(page) for page in pages] == [2, 1]
        assert [id for page in pages for id in page] == ids[::-1]
        oldest = Sandbox.list(query=query, order="asc", **yard.opts).next_items()
        assert [each.sandbox_id for each in oldest] == ids
        one = Sandbox.list(query=SandboxQuery(metadata={"series": "s", "n": "1"}), **yard.opts).next_items()
        assert [each.sandbox_id for each in one] == [ids[1]]
        paused = SandboxQuery(metadata={"series": "s"}, state=[SandboxState.PAUSED])
        assert not Sandbox.list(query=paused, **yard.opts).next_items()
        later = SandboxQuery(metadata={"series": "s"}, started_after=one[0].started_at)
        assert len(Sandbox.list(query=later, **yard.opts).next_items()) == 2
        assert not Sandbox.list(query=SandboxQuery(template="other"), **yard.opts).next_items()
    finally:
        for each in made:
            each.kill()


def test_its_time_ends_it_and_is_moved(yard: Yard, until: Callable[[Callable[[], object]], None]) -> None:
    short, kept = yard.create(timeout=5), yard.create(timeout=5)
    kept.set_timeout(100)
    again = Sandbox.connect(kept.sandbox_id, timeout=10, **yard.opts)  # which makes it no shorter
    assert (again.get_info().end_at - datetime.now(UTC)).total_seconds() > 60
    until(lambda: not short.is_running())
    assert kept.is_running()
    kept.set_timeout(1)
    until(lambda: not kept.is_running())


def test_a_second_handle_has_the_same_sandbox(yard: Yard, sandbox: Any) -> None:
    sandbox.files.write("shared.txt", "seen by both")
    again = Sandbox.connect(sandbox.sandbox_id, timeout=100, **yard.opts)
    assert again.files.read("shared.txt") == "seen by both"


def test_one_key_makes_one_sandbox(yard: Yard) -> None:
    first, again = (yard.create(idempotency_key="a-key-of-mine") for _ in range(2))
    assert first.sandbox_id == again.sandbox_id
    first.kill()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"template": "nothing-here"}, "not found"),
        ({"timeout": 10**6}, "at most 86400"),
        ({"timeout": 0}, "more than 0"),
        ({"network": {"dns_servers": ["1.1.1.1"]}}, "dnsServers"),
        ({"network": {"allow_public_traffic": True}}, "allowPublicTraffic"),
        ({"network": {"https_ports": [8443]}}, "httpsPorts"),
        ({"network": {"allow_out": ["not a host!"]}}, "allowOut"),
        ({"volume_mounts": {"/data": "volume"}}, "no volumes"),
        ({"envs": {"A=B": "x"}}, "env"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata"),
    ],
)
def test_what_is_not_here_is_refused(yard: Yard, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(SandboxException, match=why):
        yard.create(**asked)


def test_calls_that_are_not_here_are_refused_in_its_shape(yard: Yard, sandbox: Any) -> None:
    with pytest.raises(SandboxException, match=r"400: .*snapshots"):
        sandbox.create_snapshot()
    with pytest.raises(SandboxException, match=r"400: .*fork"):
        sandbox.fork()
    told = yard.api("GET", "/templates").json()
    assert told["code"] == 400
    assert "templates are not built here" in told["message"]


def test_metrics_are_those_of_now(sandbox: Any) -> None:
    sandbox.files.write("filling", b"\0" * 2**20)
    sandbox.commands.run("while :; do :; done", background=True)
    (told,) = sandbox.get_metrics()
    assert told.mem_total == 512 * 2**20
    assert 0 < told.mem_used < told.mem_total
    assert 2**20 <= told.disk_used < told.disk_total
    assert told.cpu_used_pct > 0
    for each in sandbox.commands.list():
        sandbox.commands.kill(each.pid)


def test_a_wrong_key_opens_nothing(yard: Yard) -> None:
    for key in ("e2b_0123456789abcdef", "sky_" + "0" * 43):
        with pytest.raises(AuthenticationException):
            Sandbox.create(**yard.opts_of(key))


def test_it_works_asynchronously(yard: Yard) -> None:
    async def work() -> None:
        made = await AsyncSandbox.create(timeout=60, **yard.opts)
        ran = await made.commands.run("echo $((6 * 7))")
        assert ran.stdout == "42\n"
        await made.files.write("a.txt", "text")
        assert await made.files.read("a.txt") == "text"
        said: list[str] = []
        handle = await made.commands.run(
            "echo one; read x; echo $x", background=True, stdin=True, on_stdout=said.append
        )
        await made.commands.send_stdin(handle.pid, "two\n")
        assert (await handle.wait()).stdout == "one\ntwo\n"
        assert "".join(said) == "one\ntwo\n"
        assert await made.kill()

    asyncio.run(work())
