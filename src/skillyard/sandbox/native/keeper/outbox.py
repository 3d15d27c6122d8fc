"""Sockets that travel beside frames."""

from skillyard.ipc.frames import close_all

__all__ = ["close_all"]
