"""Every store and its in-memory twin keep the promises of their port."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.testing import (
    approvals_suite,
    blobs_suite,
    publications_suite,
    records_suite,
    secret_audit_suite,
    secrets_suite,
    tokens_suite,
)
from skillyard.testing.gate_suite import sessions
from skillyard.testing.jobs import suite as jobs_suite
from skillyard.testing.sessions import suite as sessions_suite
from skillyard.testing.tools import suite as tools_suite

pytestmark = pytest.mark.anyio


def each(checks: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


@each(records_suite.CHECKS)
async def test_records(check: Any, makers: Any) -> None:
    await check(makers.records)


@each(blobs_suite.CHECKS)
async def test_blobs(check: Any, makers: Any) -> None:
    await check(makers.blobs)


@each(secrets_suite.CHECKS)
async def test_secrets(check: Any, makers: Any) -> None:
    await check(makers.secrets)


@each(sessions.CHECKS)
async def test_sessions(check: Any, makers: Any) -> None:
    await check(makers.sessions)


@each(sessions_suite.CHECKS)
async def test_sessions_of_agents(check: Any, makers: Any) -> None:
    await check(makers.kept_sandboxes)


@each(jobs_suite.CHECKS)
async def test_jobs(check: Any, makers: Any) -> None:
    await check(makers.jobs)


@each(secret_audit_suite.CHECKS)
async def test_secret_audit(check: Any, makers: Any) -> None:
    await check(makers.secret_audit)


@each(publications_suite.CHECKS)
async def test_publications(check: Any, makers: Any) -> None:
    await check(makers.publications)


@each(approvals_suite.CHECKS)
async def test_approvals(check: Any, makers: Any) -> None:
    await check(makers.approvals)


@each(tokens_suite.CHECKS)
async def test_tokens(check: Any, makers: Any) -> None:
    await check(makers.tokens)


@each(tools_suite.CHECKS)
async def test_tools(check: Any, makers: Any) -> None:
    await check(makers.tools)
