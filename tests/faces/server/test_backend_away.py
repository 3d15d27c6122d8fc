"""A server whose engine is away starts, says so, and works as soon as the engine is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.domain.errors import ProtectionMissing
from tests.conformance.sandbox import oci_ground
from tests.crash.server import Server
from tests.faces.server.test_parts import readiness, until

pytestmark = pytest.mark.timeout(300)
CODE = "def main(args): return 1"


def test_an_engine_that_is_away_is_waited_for(tmp_path: Path) -> None:
    scratch = tmp_path / "engine"
    scratch.mkdir()
    with oci_ground.engine(scratch) as (docker, settings):
        docker.stop()
        named = {"SKILLYARD_OCI__SOCKET": settings.socket, "SKILLYARD_OCI__IMAGE": settings.image}
        with Server(tmp_path / "data", SKILLYARD_POLICY__ISOLATION="oci", **named) as server, server.client() as client:
            status, told = readiness(server)
            assert status == 503
            assert "does not answer" in told["dead"]["oci"]
            assert str(scratch) not in str(told)
            with pytest.raises(ProtectionMissing, match="'oci' is away"):
                client.run_code(CODE)
            for _ in range(2):
                docker.start()
                until(lambda: readiness(server)[0] == 200)
                assert client.run_code(CODE).ok
                docker.stop()
                until(lambda: readiness(server)[0] == 503)
            docker.start()
            until(lambda: readiness(server)[0] == 200)
        assert docker("ps", "-aq").stdout == ""
