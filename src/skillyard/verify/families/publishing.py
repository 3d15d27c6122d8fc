"""Attacks of a publisher who does not approve: names, bytes, approvals, archives, schemas."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from secrets import token_hex
from typing import Any

from skillyard.domain.errors import BundleRefused, SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, NotShown, escaped
from skillyard.verify.home import SECRET, secret_value
from skillyard.verify.site import Site

PUBLISHING = Family("publishing", invariants=(6, 9))

_SCOPES = frozenset({Scope.DISCOVER, Scope.EXECUTE, Scope.PUBLISH})
_PUBLISHER = Principal("verify-publisher", _SCOPES)
_STRANGER = Principal("verify-stranger", _SCOPES, project="verify-other")
_OPERATOR = Principal("verify-operator")
_SLOW_S = 2.0
"""Seconds for which the server's loop may serve nobody else, on a busy machine."""
_ENDS_S = 60.0

_TELLS = f"import os\ndef main(args):\n    return {{'value': os.environ.get('{SECRET}', '')}}\n"
_ASKS = f'[permissions]\nsecrets = [{{ name = "{SECRET}", optional = true }}]\n'


def _name() -> str:
    return f"verify.n{token_hex(6)}"


def _files(name: str, version: str = "1.0.0", more: str = _ASKS, code: str = _TELLS) -> dict[str, bytes]:
    manifest = (
        f'name = "{name}"\nversion = "{version}"\ndescription = "Published by skillyard verify"\nkind = "action"\n'
        f'[runtime]\nlanguage = "python"\nentrypoint = "main.py"\nexport = "main"\n{more}'
    )
    text = "---\nname: helper\ndescription: Helps to verify\n---\nIt helps.\n"
    return {"skill.toml": manifest.encode(), "SKILL.md": text.encode(), "main.py": code.encode()}


def _tar(files: Mapping[str, bytes], *others: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for other in others:
            archive.addfile(other, io.BytesIO(b"x" * other.size))
    return packed.getvalue()


async def _publish(site: Site, archive: bytes, who: Principal = _PUBLISHER) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield archive

    assert site.runtime is not None
    await site.runtime.app.publisher.publish(who, chunks())


async def _call(site: Site, method: str, who: Principal = _PUBLISHER, /, **params: Any) -> dict[str, Any]:
    return await site.call_as(who, method, params)


async def _told(site: Site, name: str, **more: Any) -> str:
    """Returns the published skill's report on its environment."""
    run = await _call(site, "execute_skill", name=name, **more)
    return str((run.get("output") or {}).get("value", ""))


async def _least(site: Site) -> Judgement:
    name = _name()
    await _publish(site, _tar(_files(name)))
    if await _told(site, name):
        return escaped("a skill that nobody approved got its secret")
    must = _name()
    await _publish(site, _tar(_files(must, more=f'[permissions]\nsecrets = ["{SECRET}"]\n')))
    run = await _call(site, "execute_skill", name=must)
    if run["status"] == "completed":
        return escaped("a skill that nobody approved ran with a secret that it must have")
    reaching = _name()
    await _publish(site, _tar(_files(reaching, more='[permissions]\nnetwork = ["example.com:443"]\n')))
    shown = (await _call(site, "catalogue.needs", name=reaching))["approved"]
    run = await _call(site, "execute_skill", name=reaching)
    record = (await _call(site, "runs.show", run_id=run["run_id"]))["run"]
    return escaped("a skill that nobody approved got a network") if shown or record.get("network") else CONTAINED


PUBLISHING.steps(
    "least", "Publish a skill and run it with the secret and the network that it asks for, unapproved.", _least,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _own_approval(site: Site) -> Judgement:
    name = _name()
    await _publish(site, _tar(_files(name)))
    try:
        await _call(site, "catalogue.approve", name=name)
    except SkillyardError:
        return CONTAINED
    return escaped("who may publish approved")


PUBLISHING.steps("own-approval", "Approve what one has published oneself.", _own_approval, needs=[Need.IN_PROCESS])


async def _names(site: Site) -> Judgement:
    name = _name()
    await _publish(site, _tar(_files(name)))
    try:
        await _publish(site, _tar(_files(name, "1.0.1")), _STRANGER)
    except SkillyardError:
        pass
    else:
        return escaped("another project published under the name")
    for method in ("catalogue.withdraw", "catalogue.pin"):
        try:
            await _call(site, method, _STRANGER, name=name, version="1.0.0")
        except SkillyardError:
            continue
        return escaped(f"another project's {method}")
    return CONTAINED


PUBLISHING.steps(
    "names", "Publish under, withdraw and pin another project's name.", _names, needs=[Need.IN_PROCESS]
)  # fmt: skip


async def _approved(site: Site) -> str:
    """Returns a skill that got its secret by approval. Raises NotShown."""
    name = _name()
    await _publish(site, _tar(_files(name)))
    await _call(site, "catalogue.approve", _OPERATOR, name=name)
    if await _told(site, name) != "[redacted]":
        raise NotShown("an approved skill did not get its secret")
    return name


async def _changed(site: Site) -> Judgement:
    name = await _approved(site)
    other = _files(name, code=_TELLS + "# changed\n")
    try:
        await _publish(site, _tar(other))
    except SkillyardError:
        pass
    else:
        return escaped("other bytes were published under an approved version")
    await _publish(site, _tar(_files(name, "1.0.1")))
    return escaped("the next version got the secret") if await _told(site, name, version="1.0.1") else CONTAINED


PUBLISHING.steps(
    "changed-bytes", "Change an approved skill: other bytes under its version, or a higher version.", _changed,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _revoked(site: Site) -> Judgement:
    name = await _approved(site)
    await _call(site, "catalogue.revoke", _OPERATOR, name=name)
    return escaped("a revoked approval gave the secret") if await _told(site, name) else CONTAINED


PUBLISHING.steps("revoked", "Run a skill whose approval was revoked.", _revoked, needs=[Need.IN_PROCESS])


def _hostile() -> Iterator[tuple[str, bytes]]:
    files = _files(_name())
    for path in ("../../escaped", "/etc/escaped", "a/../../escaped", "a\\b", "con", "MAIN.py"):
        yield path, _tar({**files, path: b"x"})
    for what, kind in (
        ("a symbolic link", tarfile.SYMTYPE),
        ("a hard link", tarfile.LNKTYPE),
        ("a device", tarfile.CHRTYPE),
        ("a pipe", tarfile.FIFOTYPE),
    ):
        other = tarfile.TarInfo("code/other")
        other.type, other.linkname = kind, "/etc/passwd"
        yield what, _tar(files, other)
    yield "a file twice", _tar(files, tarfile.TarInfo("main.py"))
    yield "no archive", b"PK\x03\x04" + b"\0" * 60
    whole = _tar(files)
    yield "half an archive", whole[: len(whole) // 3]


async def _archives(site: Site) -> Judgement:
    for what, archive in _hostile():
        try:
            await _publish(site, archive)
        except BundleRefused:
            continue
        return escaped(f"an archive was taken with {what}")
    return CONTAINED


PUBLISHING.steps(
    "archives", "Publish archives that go up, link, name devices, hold a file twice or end early.", _archives,
    needs=[Need.IN_PROCESS], invariants=(4, 7),
)  # fmt: skip


def _schema(name: str, schema: object) -> bytes:
    head, _, rest = _files(name, more="", code="def main(args):\n    return {}\n")["skill.toml"].partition(b"[runtime]")
    files = _files(name, more="", code="def main(args):\n    return {}\n")
    manifest = head + b'inputs_schema = "schema.json"\n[runtime]' + rest
    return _tar({**files, "skill.toml": manifest, "schema.json": json.dumps(schema).encode()})


async def _schemas(site: Site) -> Judgement:
    """Publishes schemas without end: visible ones are refused, and others end their run alone."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(26)}
    try:
        await _publish(site, _schema(_name(), {"$ref": "#/$defs/d0", "$defs": {**twice, "d26": {}}}))
    except BundleRefused:
        pass
    else:
        return escaped("references that double 26 times were published")
    name = _name()
    value: dict[str, Any] = {}
    both = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
    await _publish(site, _schema(name, {"type": "object", "properties": {"a": both}}))
    for _ in range(27):
        value = {"a": value}
    running = asyncio.create_task(_call(site, "execute_skill", name=name, args=value))
    clock, worst = asyncio.get_running_loop().time, 0.0
    end = clock() + _ENDS_S
    while not running.done() and clock() < end:
        began = clock()
        await asyncio.wait([running], timeout=0.01)
        worst = max(worst, clock() - began)
    if not running.done():
        running.cancel()
        return escaped("a check against a schema did not end")
    await running
    return escaped(f"a check against a schema held the server for {worst:.1f} s") if worst > _SLOW_S else CONTAINED


PUBLISHING.steps(
    "schemas", "Publish schemas that take for ever: doubling references, and arguments that multiply them.", _schemas,
    needs=[Need.IN_PROCESS], invariants=(7,), alone=True,
)  # fmt: skip


async def _values(site: Site) -> Judgement:
    """Looks for a secret in the messages about values that fail a schema, whole and cut."""
    value = secret_value(site)
    code = (
        "import os\ndef main(args):\n"
        f"    return {{'x' * args['n'] + os.environ['{SECRET}']: 'y' * args['n'] + os.environ['{SECRET}']}}\n"
    )
    name = _name()
    files = _files(name, more=_ASKS + '[outputs]\nadditionalProperties = { type = "integer" }\n', code=code)
    await _publish(site, _tar(files))
    await _call(site, "catalogue.approve", _OPERATOR, name=name)
    for n in range(40, 70, 3):
        run = await _call(site, "execute_skill", name=name, args={"n": n})
        told = json.dumps([run, (await _call(site, "runs.show", run_id=run["run_id"]))["run"]])
        if any(value[at : at + 8] in told for at in range(len("verify-secret-"), len(value) - 8)):
            return escaped("a part of a secret stands in what a schema says")
    return CONTAINED


PUBLISHING.steps(
    "values", "Learn a secret from the message of an output schema that it fails, where that is cut.", _values,
    needs=[Need.IN_PROCESS],
)  # fmt: skip
