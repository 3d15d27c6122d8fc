"""Hostile archives: their names, a reader of tar streams, and a receiver that writes files."""

from __future__ import annotations

from skillyard.domain.archive.names import ArchiveRefused, printable
from skillyard.stores.archives.receiver import Received, ReceiverLimits, TarReceiver, receive_tar

__all__ = ["ArchiveRefused", "Received", "ReceiverLimits", "TarReceiver", "printable", "receive_tar"]
