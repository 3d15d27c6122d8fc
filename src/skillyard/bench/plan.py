"""How much is measured: every part is bounded by a count and by time."""

from __future__ import annotations

from dataclasses import dataclass

CONCURRENCY = (1, 2, 8)


@dataclass(frozen=True, slots=True)
class Plan:
    """``rounds`` or ``latency_s``, whichever ends first; ``windows`` of ``window_s`` for each throughput;
    ``network_rounds`` of ``network_bytes`` by each way out; a catalogue of ``skills`` skills in five versions each;
    ``schemas_s`` under schemas that do not end."""

    rounds: int
    latency_s: float
    windows: int
    window_s: float
    ready: int
    starts: int
    data: bool
    network_rounds: int = 2
    network_bytes: int = 4 << 20
    skills: int = 40
    schemas_s: float = 2.0

    @classmethod
    def of(cls, *, quick: bool, ready: int | None) -> Plan:
        if quick:
            return cls(rounds=6, latency_s=10, windows=1, window_s=0.25, ready=ready or 8, starts=3, data=False,
                       network_rounds=2, network_bytes=4 << 20)  # fmt: skip
        return cls(rounds=150, latency_s=50, windows=3, window_s=0.6, ready=ready or 100, starts=9, data=True,
                   network_rounds=8, network_bytes=64 << 20, skills=2000, schemas_s=12.0)  # fmt: skip
