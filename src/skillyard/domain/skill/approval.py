"""An operator's consent to what one version of a skill declares that it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Approval:
    """Bound to the bytes: another bundle under the same name and version is not approved by it. Times are UTC seconds
    since the epoch."""

    name: str
    version: str
    digest: str
    approved_at: float
    approved_by: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ApprovedPackages:
    """The packages that an approval is of: ``lock`` is the text of the lock that the skill's own requirements became
    first, ``wanted`` the digest of these."""

    wanted: str
    lock: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a skill's declared needs are approved, and by what: ``by`` is ``built-in``, ``directory`` (the operator
    put it into a directory of theirs), ``rule`` (``because`` is its text), ``operator`` (``because`` is who), or
    ``nobody``."""

    approved: bool
    by: str
    because: str = ""
