"""Mutants of the server: rules on what comes out of a sandbox, on secrets, on principals, on policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain import foreign_json
from skillyard.domain.principal import LOCAL, Principal
from skillyard.domain.sandbox import frames
from skillyard.domain.sandbox.frames import FrameFamilies, FrameLimits, Result
from skillyard.domain.sandbox.guarantees import Demand, Probe
from skillyard.engine import driver, table
from skillyard.engine.backends import Offer
from skillyard.engine.runs import grant, record
from skillyard.engine.secrets import service as for_run
from skillyard.engine.secrets.redact import NOTHING, Redaction
from tests.attacks.verify.mutants import Mutant


def believing(patch: pytest.MonkeyPatch) -> None:
    """A channel that breaks its rules is read on, and a run that said nothing has completed."""
    plain = driver.Driver._listen

    async def listen(self: Any, process: Any) -> None:
        await plain(self, process)

    def judge(self: Any, ending: Any) -> None:
        if not isinstance(self._channel.final, Result):
            self._channel.final = Result(b"{}")

    def value(self: Result) -> dict[str, Any]:
        try:
            found = json.loads(self.raw)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    patch.setattr(driver.Driver, "_listen", listen)
    patch.setattr(driver.Driver, "_judge", judge)
    patch.setattr(Result, "value", value)


def own_words(patch: pytest.MonkeyPatch) -> None:
    """What a run returns is laid over its record."""
    from skillyard.engine.runs import service

    plain = record.run_object

    def run_object(finished: Any) -> dict[str, Any]:
        made = plain(finished)
        return {**made, **(made.get("output") or {}), "output": made.get("output")}

    patch.setattr(service, "run_object", run_object)


def endless_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record, "MAX_OUTPUT", 1 << 30)
    patch.setattr(foreign_json, "MAX_CONTAINERS", 1 << 30)
    patch.setattr(foreign_json, "MAX_DEPTH", 1 << 30)
    patch.setattr(frames, "_FREE_PIECES", 1 << 30)
    limits = FrameLimits(blobs=100_000, open_blobs=100_000, result_bytes=1 << 30)
    plain = grant.Granter.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        self._frames = FrameFamilies(limits, limits)

    patch.setattr(grant.Granter, "__init__", init)
    patch.setattr(record, "SUMMARY_CHARACTERS", 1 << 30)


def unredacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grant, "Redaction", lambda values: NOTHING)


def secrets_for_code(patch: pytest.MonkeyPatch) -> None:
    plain = for_run._wants
    patch.setattr(for_run, "_wants", lambda plan, code_may: plain(plan, True))


def one_principal(patch: pytest.MonkeyPatch) -> None:
    """Takes any caller for the operator."""
    plain = table.invoke

    async def invoke(engine: Any, principal: Any, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return await plain(engine, LOCAL, method, params)

    patch.setattr(table, "invoke", invoke)


def telling(patch: pytest.MonkeyPatch) -> None:
    """What exists and is another's is refused by another name than what does not exist."""
    from skillyard.domain.errors import Forbidden
    from skillyard.engine.blobs import service as blobs

    plain = blobs.owned_blob

    async def owned(store: Any, principal: Any, blob_id: str) -> Any:
        if (found := await store.stat(blob_id)) is not None and found.owner != principal.name:
            raise Forbidden("not yours")
        return await plain(store, principal, blob_id)

    patch.setattr(blobs, "owned_blob", owned)


def countable(patch: pytest.MonkeyPatch) -> None:
    """Ids of blobs are numbers."""
    from skillyard.stores.clock import SystemIds

    numbers = iter(range(1, 10_000))
    patch.setattr(SystemIds, "blob", lambda self: f"blob:{next(numbers)}")


def unchecked(patch: pytest.MonkeyPatch) -> None:
    """Policy looks at no wall, neither of the host nor of a sandbox."""
    plain = Offer.__init__

    def init(self: Any, backend: Any, probe: Any, demand: Any, settings: str = "") -> None:
        plain(self, backend, probe, replace(demand, allow_degraded=frozenset(probe.protections)), settings)

    patch.setattr(Offer, "__init__", init)
    patch.setattr(Offer, "check_walls", lambda self, sandbox: None)


def chosen_ids(patch: pytest.MonkeyPatch) -> None:
    """The end of a blob may say its id."""
    from skillyard.engine.runs.collect import BlobSink

    asked: dict[str, str] = {}
    plain, plain_id = frames.FrameReader._end, BlobSink._id

    def end(self: Any, payload: bytes) -> Any:
        asked["id"] = str(json.loads(payload).get("blob_id") or "")
        return plain(self, payload)

    patch.setattr(frames.FrameReader, "_end", end)
    patch.setattr(BlobSink, "_id", lambda self, n: asked.get("id") or plain_id(self, n))


def admitting(patch: pytest.MonkeyPatch) -> None:
    """Records say that a wall is missing, and nobody minds."""
    plain = Probe.enforced
    patch.setattr(Probe, "enforced", lambda self: {**plain(self), "landlock": "missing"})
    patch.setattr(Demand, "check", lambda self, offered: None)


def approving(patch: pytest.MonkeyPatch) -> None:
    """Whatever is published is approved."""
    from skillyard.domain.skill.trust import Standing
    from skillyard.engine.skills.standings import Standings

    async def standing(standings: Any, skill: Any) -> Any:
        return Standing(True, "operator", "a mutant")

    patch.setattr(Standings, "standing_of", standing)


def everybodys_names(patch: pytest.MonkeyPatch) -> None:
    """Neither the engine nor the store asks whose a name is."""
    from skillyard.engine.skills import publishing
    from skillyard.stores.sqlite import publications

    for module in (publishing, publications):
        patch.setattr(module, "claim_refusal", lambda name, owner, project: None)


def lax_archives(patch: pytest.MonkeyPatch) -> None:
    """Entries that are refused are left out, and the rest is taken."""
    from skillyard.stores.skills.archives.collected import Collected

    patch.setattr(Collected, "report", lambda self, refused: None)


def schemas_at_hand(patch: pytest.MonkeyPatch) -> None:
    """Schemas are applied in the server's own loop."""
    from skillyard.domain.skill.schema import SchemaVerdict
    from skillyard.jailed import dialect
    from skillyard.jailed.pool import JailedPool

    async def check(self: Any, principal: str, key: str, schema: Any, value: bytes, **_: Any) -> SchemaVerdict:
        list(dialect.validator(schema).iter_errors(json.loads(value)))
        return SchemaVerdict()

    patch.setattr(JailedPool, "check", check)


def cut_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Redaction, "cut", lambda self, text, how, whole=True: self.text(how(text), whole=whole))


def any_path(patch: pytest.MonkeyPatch) -> None:
    from skillyard.domain.work import command

    patch.setattr(command, "_parts", lambda where, text: text.split("/"))


def any_tool(patch: pytest.MonkeyPatch) -> None:
    """A profile is a name alone."""
    patch.setattr(Principal, "may_call", lambda self, tool: True)
    patch.setattr(Principal, "require_profile", lambda self, tool="": None)


def widest(patch: pytest.MonkeyPatch) -> None:
    """Runs have the limits of tokens without a profile."""
    from skillyard.engine.runs.plan import Planner

    patch.setattr(Planner, "_profiled", lambda self, principal, request, family: (principal, family, request.isolation))


MUTANTS = (
    Mutant(
        "any_path", ("rule: paths of commands lie below /workspace",), "paths of commands are taken as they are",
        ("commands-paths",), outside=any_path,
    ),
    Mutant(
        "any_tool", ("rule: a profile's tools are all that its tokens have",), "profiles are names alone",
        ("profiles-tools", "profiles-lacking"), outside=any_tool, short=True,
    ),
    Mutant(
        "widest", ("rule: a profile narrows runs",), "runs of a profile have everybody's limits",
        ("profiles-widening",), outside=widest,
    ),
    Mutant(
        "approving", ("rule: an approval is an operator's, of these bytes",), "whatever is published is approved",
        ("publishing-least", "publishing-changed-bytes", "publishing-revoked"), outside=approving, short=True,
    ),
    Mutant(
        "everybodys_names", ("rule: a name is its first project's",), "every project may publish under a name",
        ("publishing-names",), outside=everybodys_names,
    ),
    Mutant(
        "lax_archives", ("rule: an archive is taken whole or not at all",), "entries that are refused are left out",
        ("publishing-archives",), outside=lax_archives,
    ),
    Mutant(
        "schemas_at_hand", ("rule: schemas are applied where it can be ended",), "the server's loop applies schemas",
        ("publishing-schemas",), outside=schemas_at_hand,
    ),
    Mutant(
        "cut_first", ("rule: secrets are taken out before anything is cut",), "texts are cut before they are redacted",
        ("publishing-values",), outside=cut_first,
    ),
    Mutant(
        "believing", ("rule: the channel is read as hostile",), "a channel that breaks its rules is believed",
        (
            "channel-garbage", "channel-lengths", "channel-order", "channel-headers", "channel-values", "channel-deaf",
            "results-log-forgery",
        ),
        outside=believing,
    ),
    Mutant(
        "own_words", ("rule: a run's own words are no record",), "what a run returns is laid over its record",
        ("channel-identity",), outside=own_words,
    ),
    Mutant(
        "chosen_ids", ("rule: ids of blobs are the server's",), "a run may name its blob",
        ("channel-blob-ids",), outside=chosen_ids,
    ),
    Mutant(
        "endless_results", ("rule: results, logs and blobs are bounded",), "no bounds on results and blobs",
        (
            "results-size", "results-depth", "results-width", "results-keys", "results-blob-count",
            "results-blobs-at-once", "results-text",
        ),
        outside=endless_results,
    ),
    Mutant(
        "unredacted", ("rule: secrets are taken out of what leaves",), "nothing is taken out",
        ("secrets-leaving",), outside=unredacted,
    ),
    Mutant(
        "secrets_for_code", ("rule: a secret is its skill's",), "code gets the secrets of the skills it mounts",
        ("secrets-mounting", "commands-secrets"), outside=secrets_for_code,
    ),
    Mutant(
        "one_principal", ("rule: objects are their principal's",), "any caller is taken for the operator",
        ("principals-stealing", "principals-same-key", "principals-scopes", "publishing-own-approval",
         "commands-stealing"),
        outside=one_principal, short=True,
    ),
    Mutant(
        "telling", ("rule: what is another's does not exist",), "what exists is refused by another name",
        ("principals-oracle",), outside=telling,
    ),
    Mutant(
        "countable", ("rule: ids cannot be guessed",), "blob ids are counted",
        ("principals-guessing",), outside=countable,
    ),
    Mutant(
        "admitting", ("rule: a missing wall refuses the run",), "records say that a wall is missing, and nobody minds",
        ("policy-record",), outside=admitting,
    ),
    Mutant(
        "unchecked", ("rule: a missing wall refuses the run",), "policy looks at no wall",
        ("policy-missing-on-host", "policy-missing-in-sandbox"), outside=unchecked,
    ),
)  # fmt: skip
