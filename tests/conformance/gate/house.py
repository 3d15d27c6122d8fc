"""A data directory of gates, whose servers are killed one after the other."""

from __future__ import annotations

from pathlib import Path

from skillyard.gate.client import ProcessGate
from skillyard.stores.seal.keys import KeySource, OwnKeyFile
from skillyard.stores.seal.sessions import SealedSessions
from tests.conformance.gate.conftest import GATE_UID
from tests.conformance.gate.test_gate_process import _runs


class House:
    """A data directory, whose servers are killed one after the other."""

    def __init__(self, home: Path, ca_file: Path | None) -> None:
        self.home = home
        self.faults: list[str] = []
        self.told: list[str] = []
        self._ca_file = ca_file
        self._gates: list[ProcessGate] = []

    def server(self, keys: KeySource | None = None) -> ProcessGate:
        """The next server, after the one before was killed."""
        for gate in self._gates:
            if gate._link is not None:
                gate._link.drop()
        store = SealedSessions(self.home / "sessions", keys or OwnKeyFile(self.home / "key", self.home / "sealed"))
        gate = ProcessGate(self.home / "gate", uid=GATE_UID, ca_file=self._ca_file, sessions=store)
        gate.attend(lambda _: None, self.faults.append, self.told.append)
        self._gates.append(gate)
        return gate

    def files(self) -> list[str]:
        """Everything of sessions that lies in the directory."""
        found = [*self.home.glob("sessions/*.sealed"), *self.home.glob("gate/*.pem"), *self.home.glob("gate/**/*.sock")]
        return sorted(path.name for path in found if path.name != "gate.sock")

    async def close(self) -> None:
        """Every session is over and nothing is left."""
        gate = self.server()
        for key in await gate.held():
            await gate.discard(key)
        pid = gate._link.pid if gate._link is not None else 0
        await gate.close()
        assert not pid or not _runs(pid)
        assert self.files() == []
