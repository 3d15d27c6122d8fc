"""What ``skill publish`` and ``skill install`` tell of a version, or of why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillyard.client.errors import RpcError
from skillyard.domain.errors import SkillyardError
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.render import calm, emit_json, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.client.bundles import PublishedSkill

_FACTS = ("name", "version", "digest", "size_bytes", "files", "created")
_EXPECTED = frozenset({"archive-stripped"})
"""How tar and zip are used: nobody has to be told."""


def published_facts(done: PublishedSkill) -> dict[str, Any]:
    """As JSON has it."""
    return {**{name: getattr(done, name) for name in _FACTS}, "findings": list(done.findings)}


def check_local(source: str) -> None:
    """Raises Failure for a URL: nothing is fetched, and a checkout shows what it is before it is trusted."""
    if "://" in source:
        raise Failure(f"{source} is a URL", "clone or download it, look at it, and name what lies on this machine")


def named(done: PublishedSkill) -> dict[str, Any]:
    return {"name": done.name, "version": done.version}


def print_published(source: str, done: PublishedSkill) -> None:
    print_findings(source, done.findings)
    click.echo(calm(f"{done.name}@{done.version}"))
    how = "published" if done.created else "was published before, with the same content"
    files = "1 file" if done.files == 1 else f"{done.files} files"
    click.echo(calm(f"{how}: {files}, {size(done.size_bytes)}, sha256 {done.digest}"), err=True)


def explained(error: RpcError | SkillyardError, source: str, *, as_json: bool) -> Exception:
    """The error to be raised, once its findings were shown."""
    data: dict[str, Any] = error.data if isinstance(error, RpcError) else error.details
    findings = data.get("findings")
    if not isinstance(findings, list):
        return error
    found = [finding for finding in findings if isinstance(finding, dict)]
    if as_json:
        emit_json({"error": {"type": error.type, "message": error.message, "findings": found}})
    else:
        print_findings(source, found)
    count = sum(finding.get("level") == "error" for finding in found)
    errors = "1 error" if count == 1 else f"{count} errors"
    return Failure(f"{source}: not published, it has {errors}", code=Exit.BAD_INPUT)


def print_findings(source: str, findings: Sequence[dict[str, Any]]) -> None:
    for finding in findings:
        if finding.get("rule") in _EXPECTED:
            continue
        file, line = finding.get("file"), finding.get("line")
        where = (source if file == "." else f"{source}/{file}") + (f":{line}" if line else "")
        text = f"{where}: {finding.get('level')}: {finding.get('message')} [{finding.get('rule')}]"
        mend = f"\n    mend: {finding['mend']}" if finding.get("mend") else ""
        click.echo(calm(text + mend), err=True)
