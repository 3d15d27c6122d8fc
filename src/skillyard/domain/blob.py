"""The limits of blobs, and the refusals that follow."""

from __future__ import annotations

import math

from skillyard.domain.errors import InvalidInput, QuotaExceeded
from skillyard.values import dataclass

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class BlobLimits:
    """Bytes of one blob; bytes and number of all blobs of one owner. Equal contents count each time."""

    blob_bytes: int = 4 * GIB
    owner_bytes: int = 64 * GIB
    owner_count: int = 1_000_000

    def check_size(self, size: int, max_bytes: int | None = None) -> None:
        """Raises QuotaExceeded for a blob of ``size`` bytes; ``max_bytes`` is the caller's bound."""
        maximum = self.blob_bytes if max_bytes is None else min(self.blob_bytes, max_bytes)
        if size > maximum:
            raise refusal(f"must be at most {maximum} bytes", "blob_bytes", maximum)

    def check_owner(self, stored_count: int, stored_bytes: int, size: int) -> None:
        """Raises QuotaExceeded when one more blob of ``size`` bytes would pass the owner's quota."""
        if stored_count + 1 > self.owner_count:
            rule = f"would pass the quota of {self.owner_count} blobs; delete some first"
            raise refusal(rule, "owner_count", self.owner_count)
        if stored_bytes + size > self.owner_bytes:
            rule = f"would pass the quota of {self.owner_bytes} bytes in all; delete some blobs first"
            raise refusal(rule, "owner_bytes", self.owner_bytes)


def refusal(rule: str, limit: str, maximum: int) -> QuotaExceeded:
    return QuotaExceeded("content", rule, limit=limit, maximum=maximum)


def expiry(now: float, ttl_s: float | None) -> float | None:
    """Returns when a blob made ``now`` expires. Raises InvalidInput unless ``ttl_s`` is a positive number."""
    if ttl_s is None:
        return None
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise InvalidInput("ttl_s", "must be a positive number of seconds", str(ttl_s)[:32])
    return now + ttl_s
