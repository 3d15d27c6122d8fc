"""Which boundary a run gets: a backend's name, or ``auto`` for the strongest that stands on this host."""

from __future__ import annotations

from collections.abc import Mapping

AUTO = "auto"

STRONGEST_FIRST = ("native", "gvisor", "landlock")
"""What ``auto`` tries, in this order: every wall and the speed of a fork; every wall of ours that a user-space
kernel needs; what is left where namespaces are closed."""

CHOICES = (*STRONGEST_FIRST, AUTO)

WAIVED: Mapping[str, frozenset[str]] = {
    "landlock": frozenset(
        {
            "user_namespace",
            "mount_namespace",
            "pid_namespace",
            "net_namespace",
            "ipc_namespace",
            "read_only_root",
            "private_proc",
        }
    ),
}
"""Walls that an isolation is without by its nature: choosing it by name, or by ``auto``, accepts that. The probe,
the record and doctor show them as missing all the same."""

WITHOUT_NETWORK = frozenset({"gvisor", "landlock"})
"""Isolations without a network by their nature; choosing one accepts that, as a waiver does."""


def waived(isolation: str) -> frozenset[str]:
    return WAIVED.get(isolation, frozenset())
