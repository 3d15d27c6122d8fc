"""A server that answers E2B's SDKs, and callers of it with and without an SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from skillyard.domain.principal import DEFAULT_PROJECT, Principal, Scope
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.tokens import FileTokens
from tests.crash.server import Server, end_kept

Sandbox = pytest.importorskip("e2b", reason="the extra 'e2b' is not installed").Sandbox
ENV = {
    "SKILLYARD_E2B_SERVER__ENABLED": "true",
    "SKILLYARD_SERVICES__PLACES": "24",
    "SKILLYARD_SERVICES__PLACES_EACH": "20",
}
PATIENCE_S = 60.0


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.timeout(300))


class Yard:
    """A server, with the parameters by which an SDK finds it."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def opts(self) -> dict[str, Any]:
        return self.opts_of(self.server.token)

    def opts_of(self, token: str) -> dict[str, Any]:
        return {"api_url": self.server.url, "sandbox_url": self.server.url, "api_key": token, "retries": 0}

    def create(self, **more: Any) -> Any:
        return Sandbox.create(**{"timeout": 120, **self.opts, **more})

    def token_of(self, name: str, *scopes: Scope) -> str:
        """Returns a token of another principal."""
        tokens = FileTokens(self.server.data_dir / "tokens.json", SystemClock())
        principal = Principal(name, frozenset(scopes or (Scope.RUN_CODE,)), project=DEFAULT_PROJECT)
        return asyncio.run(tokens.create(principal))

    def revoke(self, name: str) -> None:
        assert asyncio.run(FileTokens(self.server.data_dir / "tokens.json", SystemClock()).revoke(name))

    def api(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx2.Response:
        headers = {"X-API-KEY": self.server.token if token is None else token}
        return self.ask(method, path, headers, **more)

    def ask(self, method: str, path: str, headers: dict[str, str], **more: Any) -> httpx2.Response:
        with httpx2.Client(trust_env=False, timeout=PATIENCE_S) as client:
            return client.request(method, self.server.url + path, headers=headers, **more)

    def envd(self, sandbox: Any, call: str, message: Any, **headers: str) -> httpx2.Response:
        """Calls the daemon of a sandbox as its SDK does; a header that is empty is left out."""
        usual = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": sandbox._envd_access_token,
            "Content-Type": "application/json",
        }
        given = {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.ask("POST", call, {name: value for name, value in given.items() if value}, json=message)


@pytest.fixture(scope="package")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    data_dir: Path = tmp_path_factory.mktemp("e2b") / "data"
    with Server(data_dir, **cast("Any", ENV)) as server:
        yield Yard(server)
    end_kept()


@pytest.fixture(scope="package")
def sandbox(yard: Yard) -> Iterator[Any]:
    """One sandbox for tests that disturb nobody."""
    made = yard.create(envs={"GREETING": "hello"}, timeout=3000)
    yield made
    made.kill()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "it does not come true"
            time.sleep(0.05)

    return wait
