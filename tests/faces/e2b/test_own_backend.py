"""The backend for machines of a provider finds out that this server's sandboxes are not machines, and refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.config.backends import E2bSettings
from skillyard.domain.secret import Delivery, Secret, SecretScope
from skillyard.sandbox.e2b.backend import E2bBackend
from tests.faces.e2b.conftest import Yard

pytestmark = pytest.mark.anyio


async def test_sandboxes_without_root_are_refused_by_name(yard: Yard, tmp_path: Path) -> None:
    """The backend builds walls of its own in a machine as root, whom no sandbox of ours has."""

    async def key(name: str, project: str, skill: str) -> Secret:
        return Secret(name, yard.server.token, "store:1", Delivery.ENV, (), SecretScope(project, skill))

    url = yard.server.url
    before = yard.api("GET", "/v2/sandboxes").json()
    settings = E2bSettings(template="base", api_url=url, sandbox_url=url, http_version="1.1")
    backend = E2bBackend(tmp_path, settings, key)
    try:
        probe = await backend.probe()
        assert not probe.ready
        assert "root" in str(probe.protections)
    finally:
        await backend.close()
    after = yard.api("GET", "/v2/sandboxes").json()
    assert {each["sandboxID"] for each in after} <= {each["sandboxID"] for each in before}
