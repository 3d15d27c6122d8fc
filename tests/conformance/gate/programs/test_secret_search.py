"""A secret that is delivered at the gate stands nowhere in the sandbox, and in nothing that leaves it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from skillyard.bench.idle import family
from skillyard.data_dir import DataDir
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.processes import gates, holds, words
from tests.conformance.gate.programs.secret_skill import NAME, SECRET, write_skill
from tests.conformance.gate.programs.web import Answer, Asked

BOUND_S = 60.0


class Service:
    """What the skill calls, and the secret that it calls it with."""

    def __init__(self, place: Place) -> None:
        world = place.world
        self.place = place
        self.value = f"sk-live-{token_hex(20)}"
        self.held, self.released = threading.Event(), threading.Event()
        world.routes.update(
            {"/encoded": self._encoded, "/pieces": self._pieces, "/error": self._error, "/moved": self._moved,
             "/hold": self._hold}
        )  # fmt: skip
        network = [world.rule("api.yard.test", "https"), world.rule("api.yard.test", "http"),
                   world.rule("other.yard.test", "https"), world.rule("other.yard.test", "http")]  # fmt: skip
        write_skill(DataDir(place.yard.settings.data_dir).skills, network, [world.rule("api.yard.test", "https")])
        place.yard.runtime.call("secrets.set", {"name": SECRET, "value": self.value})

    def args(self, do: str) -> dict[str, Any]:
        world, head, tail = self.place.world, self.value[:-12], self.value[-12:]
        return {
            "do": do, "url": world.url("api.yard.test", "https", "").rstrip("/"), "host": "api.yard.test",
            "port": world.ports["https"], "other": world.url("other.yard.test", "https", ""),
            "plain": world.url("other.yard.test", "http", ""), "bound_plain": world.url("api.yard.test", "http", ""),
            "tail": tail, "size": len(head), "digest": hashlib.sha256(head.encode()).hexdigest(),
        }  # fmt: skip

    def forms(self) -> list[bytes]:
        """The value as it may be written."""
        raw = self.value.encode()
        inner = [base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)]
        return [raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode(), *inner]

    def _encoded(self, asked: Asked) -> Answer:
        return 200, {}, base64.b64encode(b"it is " + asked.headers["x-api-key"].encode())

    def _pieces(self, asked: Asked) -> Answer:
        return 200, {"x-told": asked.headers["x-api-key"]}, (asked.headers["x-api-key"] + "\n").encode() * 3000

    def _error(self, asked: Asked) -> Answer:
        return 403, {"www-authenticate": f"Bearer {asked.headers['x-api-key']}"}, asked.headers["x-api-key"].encode()

    def _moved(self, asked: Asked) -> Answer:
        return 302, {"location": f"/echo?was={asked.headers['x-api-key']}"}, b""

    def _hold(self, asked: Asked) -> Answer:
        self.held.set()
        self.released.wait(BOUND_S)
        return 200, {}, b"released"


@pytest.fixture
def service(place: Place) -> Iterator[Service]:
    place.world.seen.clear()
    service = Service(place)
    yield service
    service.released.set()


def test_it_is_used_and_found_nowhere(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    place = service.place
    limits = {"timeout_ms": 90_000, "memory_mb": 1024}
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(place.yard.runtime.execute_skill, NAME, service.args("use"), limits=limits)
        assert service.held.wait(BOUND_S) or future.result(BOUND_S) is None, future.result(BOUND_S)
        holders = _holders(service) if os.geteuid() == 0 else None
        service.released.set()
        run = future.result(2 * BOUND_S)
    assert run.ok, dict(run.raw)
    record = place.yard.told(run)
    told = record.output
    assert told["key"] != service.value
    assert told["held"] == "released"
    assert told["found"] == []
    _was_used(service, told["said"])
    if holders is not None:
        assert holders <= {"server", "gate"}, holders
    shown = place.yard.runtime.call("runs.show", {"run_id": run.run_id})
    everything = json.dumps([dict(run.raw), shown, told, record.connections])
    if run.logs_blob:
        everything += str(place.yard.runtime.call("read_blob", {"blob_id": run.logs_blob, "mode": "full"}))
    everything += "".join(capfd.readouterr())
    assert [form for form in service.forms() if form.decode() in everything] == []
    assert _files_with(service, place.yard.settings.data_dir) == []
    used = [one for one in record.allowed() if SECRET in one["secrets"]]
    assert {one["host"] for one in used} == {"api.yard.test"}


def _was_used(service: Service, said: dict[str, str]) -> None:
    """The server behind got the value each time, and what it said of it came back without."""
    seen = service.place.world.seen
    basic = base64.b64encode(f"user:{service.value}".encode()).decode()
    fields = [
        {*asked.headers.values()} & {service.value, f"Bearer {service.value}", f"Basic {basic}"} for asked in seen
    ]
    assert len([one for one in fields if one]) >= len(said), (len(fields), said)
    assert all(text for text in said.values())
    assert [how for how, text in said.items() if any(form.decode() in text for form in service.forms())] == []
    assert all("skillyard-secret-" in said[how] for how in ("bearer", "own field", "transparent", "curl")), said


def _holders(service: Service) -> set[str]:
    """Which processes of this server hold the value, by kind; that looking finds something is shown by the skill's own
    placeholder."""
    known = set(gates())
    found = {"server" for _ in [0] if holds(os.getpid(), service.forms()[:1])}
    placeholders = 0
    run_dir = DataDir(service.place.yard.settings.data_dir).run
    for pid in (*family(run_dir), *known):
        try:
            placeholders += holds(pid, [b"skillyard-secret-"])
            if holds(pid, service.forms()):
                found.add("gate" if pid in known else f"{pid} {' '.join(words(pid))[:80]}")
        except OSError:
            continue
    assert placeholders >= 2, "a run's process and the gate have it"
    return found


def _files_with(service: Service, home: Path) -> list[str]:
    found = []
    for path in home.rglob("*"):
        if path.is_file() and not path.is_symlink() and "environments" not in path.parts:
            text = path.read_bytes()
            if any(form in text for form in service.forms()):
                found.append(str(path))
    return found


def test_it_is_in_no_error(service: Service) -> None:
    run = service.place.yard.runtime.execute_skill(NAME, service.args("fail"))
    assert not run.ok
    assert "skillyard-secret-" in str(run.raw), run.raw
    assert [form for form in service.forms() if form.decode() in json.dumps(dict(run.raw))] == []


def test_where_it_does_not_belong_it_is_refused(service: Service) -> None:
    place = service.place
    run = place.yard.runtime.execute_skill(NAME, service.args("misuse"), limits={"timeout_ms": 90_000})
    assert run.ok, dict(run.raw)
    assert {how: said for how, said in run.output.items() if said.startswith('{"sni"')} == {}
    for asked in place.world.seen:
        whole = f"{asked.target} {asked.headers} {asked.body!r}"
        assert service.value not in whole
        assert "skillyard-secret-" not in whole, whole
    told = place.yard.told(run)
    reasons = [one["reason"] for one in told.refused() if "placeholder" in one["reason"]]
    assert len(reasons) >= 5, told.connections
    assert any(one["host"] == "other.yard.test" for one in told.refused()), told.connections
