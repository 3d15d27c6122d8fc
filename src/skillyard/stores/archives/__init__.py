"""Archives from hostile hands: names, tar as a stream, and writing what it holds below a directory."""

from __future__ import annotations

from skillyard.stores.archives.receiver import Received, ReceiverLimits, TarReceiver, receive_tar
from skillyard.stores.archives.refused import ArchiveRefused, printable

__all__ = ["ArchiveRefused", "Received", "ReceiverLimits", "TarReceiver", "printable", "receive_tar"]
