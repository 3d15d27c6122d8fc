"""Approving what skills declare: by whom, of what, until when; over a registry and real bundles."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, InvalidInput, SkillNotFound
from skillyard.domain.principal import Scope
from skillyard.domain.skill.trust import Approval
from skillyard.engine.observer import ApprovalChanged
from tests.bundles import skill_files, tar
from tests.unit.engine.conftest import Rig
from tests.unit.engine.skills.publisher import ANN, PUBLISHER, ROOT, Publisher, publisher

pytestmark = pytest.mark.anyio

NAME = "acme.words.say"
ASKS = """
[permissions]
network = ["api.x.com:443", "*"]
secrets = ["KEY", { name = "GATED", delivery = "gate", hosts = ["api.x.com"], optional = true }]
[limits]
memory_mb = 100000
"""


@pytest.fixture
async def yard(rig: Rig) -> Publisher:
    rig.with_network()
    rig.secrets.values = {"KEY": "value-value"}
    return await publisher(rig)


def bundle(version: str = "1.0.0", more: str = ASKS, **changes: bytes) -> bytes:
    files = skill_files() | changes
    manifest = files["skill.toml"].decode().replace('version = "1.0.0"', f'version = "{version}"')
    return tar({**files, "skill.toml": f"{manifest}\n{more}".encode()})


async def status(yard: Publisher) -> str:
    run = await yard.rig.call("execute_skill", ANN, name=NAME, args={}, network=[])
    return "completed" if run["status"] == "completed" else str(run["error"]["type"])


async def test_what_is_approved_is_seen_first(yard: Publisher) -> None:
    stored = (await yard.publish(bundle())).publication
    seen = await yard.call("needs", name=NAME)
    assert {**seen, "needs": 0} == {
        "name": NAME,
        "version": "1.0.0",
        "digest": stored.digest,
        "source": "published",
        "approved": False,
        "by": "nobody",
        "because": "",
        "needs": 0,
    }
    assert seen["needs"] == [
        {"need": "network", "asked": "api.x.com:443", "granted": "api.x.com:443"},
        {"need": "network", "asked": "*", "why": "the operator has not consented to every host (network.open)"},
        {"need": "secret", "asked": "KEY", "granted": "env"},
        {"need": "secret", "asked": "GATED, gate: api.x.com, optional", "granted": "gate: api.x.com"},
        {
            "need": "limit",
            "asked": "memory_mb=100000",
            "granted": "memory_mb=8192",
            "why": "the operator's maximum",
        },
    ]
    approved = await yard.call("approve", ROOT, name=NAME, digest=seen["digest"], note="read it")
    assert (approved["approved"], approved["by"], approved["because"]) == (True, "operator", ROOT.name)
    assert approved["needs"] == seen["needs"]
    assert approved["approval"] == {
        "name": NAME,
        "version": "1.0.0",
        "digest": stored.digest,
        "approved_at": yard.rig.clock.now(),
        "approved_by": ROOT.name,
        "note": "read it",
    }


async def test_publishing_is_not_approving(yard: Publisher) -> None:
    """Nor may a publisher approve, or see what is approved."""
    await yard.publish(bundle())
    assert await status(yard) == "PolicyRefused"
    for method, params in (("approve", {"name": NAME}), ("revoke", {"name": NAME}), ("approvals", {})):
        with pytest.raises(Forbidden):
            await yard.call(method, ANN, **params)
    assert await status(yard) == "PolicyRefused"


async def test_approving_and_revoking_are_in_force_at_once_and_told(yard: Publisher) -> None:
    digest = (await yard.publish(bundle(more='[permissions]\nsecrets = ["KEY"]'))).publication.digest
    assert await status(yard) == "PolicyRefused"
    await yard.call("approve", ROOT, name=NAME, note="ok")
    assert await status(yard) == "completed"
    told = await yard.call("revoke", ROOT, name=NAME, version="1.0.0")
    assert told == {"name": NAME, "version": "1.0.0", "revoked": 1, "still": None}
    assert await status(yard) == "PolicyRefused"
    assert (await yard.call("revoke", ROOT, name=NAME))["revoked"] == 0
    assert yard.rig.of(ApprovalChanged) == [
        ApprovalChanged("approved", NAME, "1.0.0", digest, ROOT.name, "ok"),
        ApprovalChanged("revoked", NAME, "1.0.0", "", ROOT.name, ""),
    ]


async def test_another_version_is_another_approval(yard: Publisher) -> None:
    secret = '[permissions]\nsecrets = ["KEY"]'
    await yard.publish(bundle(more=secret))
    await yard.call("approve", ROOT, name=NAME)
    await yard.publish(bundle("1.1.0", secret))
    assert await status(yard) == "PolicyRefused"
    await yard.call("approve", ROOT, name=NAME, version="1.1.0")
    assert await status(yard) == "completed"
    assert (await yard.call("revoke", ROOT, name=NAME))["revoked"] == 2


async def test_bytes_that_changed_since_they_were_looked_at(yard: Publisher) -> None:
    """A directory may change between the look and the word."""
    yard.rig.configure(trust={"directories": False})
    _on_disk(yard, "1.0.0", "")
    seen = await yard.call("needs", ROOT, name=NAME)
    _on_disk(yard, "1.0.0", ASKS)
    with pytest.raises(InvalidInput, match=r"digest: is not that of 'acme\.words\.say' 1\.0\.0 as it is now"):
        await yard.call("approve", ROOT, name=NAME, digest=seen["digest"])
    assert (await yard.call("approvals", ROOT))["approvals"] == []
    await yard.call("approve", ROOT, name=NAME)
    assert await status(yard) == "completed"
    _on_disk(yard, "1.0.0", ASKS + "timeout_ms = 5\n")
    assert await status(yard) == "PolicyRefused", "other bytes, in the directory that was approved"
    [row] = (await yard.call("approvals", ROOT))["approvals"]
    assert not row["served"]


async def test_what_it_requires_is_looked_at_too(yard: Publisher) -> None:
    more = 'requires = ["acme.lib >=1"]\n'
    top = skill_files("acme.top")
    files = {**top, "skill.toml": top["skill.toml"].replace(b"[runtime]", more.encode() + b"[runtime]")}
    await yard.publish(tar(files))

    async def row() -> dict[str, str]:
        [found] = (await yard.call("needs", ROOT, name="acme.top"))["needs"]
        assert isinstance(found, dict)
        return {key: found.get(key, "") for key in ("asked", "granted", "why")}

    asked = "acme.lib >=1.0.0"
    why = f"'acme.top' 1.0.0 requires '{asked}', which is not available"
    assert await row() == {"asked": asked, "granted": "", "why": why}
    await yard.publish(tar(skill_files("acme.lib")))
    lacks = "'acme.lib' 1.0.0 is not approved: `skillyard skill approve acme.lib@1.0.0`"
    assert await row() == {"asked": asked, "granted": "acme.lib 1.0.0", "why": lacks}
    await yard.call("approve", ROOT, name="acme.lib")
    await yard.publish(tar(skill_files("acme.lib", "1.1.0")))
    assert await row() == {"asked": asked, "granted": "acme.lib 1.0.0", "why": ""}, "as once it is approved"


async def test_a_restored_version_has_to_be_approved_again(yard: Publisher) -> None:
    await yard.publish(bundle(more='[permissions]\nsecrets = ["KEY"]'))
    await yard.call("approve", ROOT, name=NAME)
    await yard.call("restore", ANN, name=NAME, version="1.0.0")
    assert await status(yard) == "completed", "it was not withdrawn: nothing changed"
    await yard.call("withdraw", ROOT, name=NAME, version="1.0.0", reason="it steals")
    with pytest.raises(SkillNotFound):
        await yard.call("approve", ROOT, name=NAME, version="1.0.0")
    await yard.call("restore", ANN, name=NAME, version="1.0.0")
    assert await status(yard) == "PolicyRefused"
    assert yard.rig.of(ApprovalChanged)[-1] == ApprovalChanged("revoked", NAME, "1.0.0", "", "ann", "restored")


async def test_what_is_approved_by_a_rule_stays_so(yard: Publisher) -> None:
    yard.rig.configure(trust={"approve": ["acme.* <2"]})
    await yard.publish(bundle(more='[permissions]\nsecrets = ["KEY"]'))
    assert await status(yard) == "completed"
    told = await yard.call("revoke", ROOT, name=NAME)
    assert (told["revoked"], told["still"]) == (0, {"version": "1.0.0", "by": "rule", "because": "acme.* <2"})
    await yard.publish(bundle("2.0.0", '[permissions]\nsecrets = ["KEY"]'))
    assert await status(yard) == "PolicyRefused"


async def test_the_list_comes_in_pages(yard: Publisher) -> None:
    for minor in range(5):
        await yard.publish(bundle(f"1.{minor}.0"))
        await yard.call("approve", ROOT, name=NAME, version=f"1.{minor}.0")
    await yard.call("withdraw", ROOT, name=NAME, version="1.2.0")
    seen: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await yard.call("approvals", ROOT, limit=2, cursor=cursor)
        seen += page["approvals"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [(row["version"], row["served"]) for row in seen] == [
        ("1.0.0", True),
        ("1.1.0", True),
        ("1.2.0", False),
        ("1.3.0", True),
        ("1.4.0", True),
    ]
    assert (await yard.call("approvals", ROOT, name="acme.other"))["approvals"] == []
    for wrong in ("x", "AAAA"):
        with pytest.raises(InvalidInput, match="cursor"):
            await yard.call("approvals", ROOT, cursor=wrong)


async def test_what_a_token_may_not_use_is_not_there(yard: Publisher) -> None:
    await yard.publish(bundle())
    stranger = replace(ANN, skills=("other.*",))
    admin = replace(stranger, scopes=frozenset({Scope.ADMIN}))
    for method, who in (("needs", stranger), ("approve", admin), ("revoke", admin)):
        errors = []
        for name in (NAME, "acme.nothing"):
            with pytest.raises(SkillNotFound) as caught:
                await yard.call(method, who, name=name)
            errors.append(caught.value.message.replace(name, "N"))
        assert errors[0] == errors[1]
    with pytest.raises(Forbidden):
        await yard.call("needs", replace(ANN, scopes=PUBLISHER & {Scope.DISCOVER}), name=NAME)


def _on_disk(yard: Publisher, version: str, more: str) -> None:
    home = yard.directory / NAME
    for path, data in skill_files().items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    manifest = (home / "skill.toml").read_text()
    (home / "skill.toml").write_text(f"{manifest}\n{more}")


async def test_an_approval_that_is_being_written_does_not_outlive_a_restore(
    yard: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    await yard.publish(bundle())
    store, writing, go_on = yard.rig.app.ports.approvals, asyncio.Event(), asyncio.Event()
    write = store.approve

    async def slow(approval: Approval) -> None:
        writing.set()
        await go_on.wait()
        await write(approval)

    monkeypatch.setattr(store, "approve", slow)
    approving = asyncio.create_task(yard.call("approve", ROOT, name=NAME))
    await writing.wait()

    async def withdraw_and_restore() -> None:
        await yard.call("withdraw", name=NAME, version="1.0.0")
        await yard.call("restore", name=NAME, version="1.0.0")

    restoring = asyncio.create_task(withdraw_and_restore())
    await asyncio.wait([restoring], timeout=0.1)
    go_on.set()
    await asyncio.gather(approving, restoring)
    assert not (await yard.call("needs", name=NAME))["approved"]
