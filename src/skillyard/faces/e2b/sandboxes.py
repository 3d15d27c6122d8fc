"""The lifecycle of sandboxes, as E2B's API has it below ``/sandboxes``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from skillyard.config.faces.e2b import E2bServerSettings
from skillyard.config.network import NetworkSettings
from skillyard.config.services import ServiceSettings
from skillyard.domain.errors import InvalidInput, RunNotFound, shape, shown
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.image import is_by_digest
from skillyard.domain.work.record import RunRecord
from skillyard.domain.work.stay import Stay
from skillyard.engine.runs.history import RunHistory
from skillyard.engine.services.sandboxes import SandboxService, Wanted, is_paused
from skillyard.faces.e2b.access import Tokens, run_id, sandbox_id
from skillyard.faces.e2b.call import Call, count_in, flag_of, number_of, text_of, texts_of
from skillyard.faces.e2b.errors import ApiRefusal, NotHere
from skillyard.faces.e2b.network import rules_of
from skillyard.ports.clock import Clock

ENVD_VERSION = "0.6.7"
"""The version of E2B's daemon whose calls are answered."""
CLIENT = "skillyard"
MOST_PAGE = 100
_RUNNING, _PAUSED = "running", "paused"
_NO_FILES_ALONE = "sandboxes are paused with their memory, never with their files alone"
_NEXT = "x-next-token"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Answers the calls about sandboxes. ``environments`` gives the names that are templates without being listed."""

    sandboxes: Callable[[], SandboxService]
    history: Callable[[], RunHistory]
    clock: Clock
    tokens: Tokens
    settings: E2bServerSettings
    network: NetworkSettings
    services: ServiceSettings
    own_port: Callable[[], int]
    environments: Callable[[], Mapping[str, Any]]
    look: Callable[[RunRecord], Awaitable[Mapping[str, Any]]]
    """Returns what the processes and files of a sandbox take, in its own words."""

    async def create(self, principal: Principal, call: Call) -> tuple[int, Any]:
        """Makes a sandbox. Answers 201."""
        body = await call.json(principal.name)
        _refuse_what_is_not_here(body)
        template = text_of(body, "templateID", "base")
        network = {} if body.get("network") is None else body["network"]
        if not isinstance(network, dict):
            raise InvalidInput("network", "must be an object", shape(network))
        asked = {**network, "allow_internet_access": body.get("allow_internet_access")}
        record = await self.sandboxes().make(
            principal,
            Wanted(
                Stay(
                    number_of(body, "timeout", self.settings.timeout_s),
                    template,
                    texts_of(body, "metadata"),
                    *_at_its_end(body),
                ),
                env=texts_of(body, "envVars"),
                network=rules_of(asked, self.network),
                idempotency_key=_key(call.header("idempotency-key")),
                **self._made_of(template),
            ),
        )
        return 201, self.entry(record)

    async def list(self, principal: Principal, call: Call) -> tuple[int, Any, dict[str, str]]:
        """Lists the principal's sandboxes, by pages."""
        query = call.query()
        states = [word for word in query.get("state", "").split(",") if word]
        if unknown := [word for word in states if word not in (_RUNNING, _PAUSED)]:
            raise InvalidInput("state", f"must be {_RUNNING} or {_PAUSED}", shown(unknown[0]))
        found = [each for each in self.sandboxes().list(principal) if not states or _state(each) in states]
        if query.get("order", "desc") not in ("asc", "desc"):
            raise InvalidInput("order", "must be asc or desc", shown(query["order"]))
        if query.get("order") == "asc":
            found.reverse()
        wanted = _metadata_of(query.get("metadata", ""))
        since, template = _moment(query.get("startedAfter")), query.get("template")
        found = [record for record in found if _fits(record, wanted, since, template)]
        after, limit = query.get("nextToken"), count_in(query, "limit", MOST_PAGE, MOST_PAGE)
        if after:
            places = [at for at, record in enumerate(found) if sandbox_id(record) == after]
            if not places:
                raise InvalidInput("nextToken", "must be of a sandbox that is listed; begin again", shown(after))
            found = found[places[0] + 1 :]
        page = found[:limit]
        more = {_NEXT: sandbox_id(page[-1])} if len(found) > limit else {}
        return 200, [self.told(record) for record in page], more

    async def info(self, principal: Principal, named: str) -> tuple[int, Any]:
        """Tells of one sandbox."""
        record = await self._find(principal, named)
        told = self.told(record) | {
            "domain": self.domain,
            "envdAccessToken": self.tokens.envd(record.run_id),
            "lifecycle": {
                "autoResume": bool(_stay(record).get("wakes")),
                "onTimeout": "pause" if _stay(record).get("pauses") else "kill",
            },
        }
        return 200, told

    async def end(self, principal: Principal, named: str) -> tuple[int, None]:
        """Ends a sandbox. Answers 204."""
        await self._find(principal, named)
        await self.sandboxes().end(principal, run_id(named))
        return 204, None

    async def connect(self, principal: Principal, named: str, call: Call) -> tuple[int, Any]:
        """Returns the access to a sandbox, whose time becomes longer where it was shorter."""
        body = await call.json(principal.name)
        _check_resumed(await self._find(principal, named), body)
        seconds = number_of(body, "timeout", self.settings.timeout_s)
        await self.sandboxes().resume(principal, run_id(named), seconds)
        record = await self.sandboxes().move_end(principal, run_id(named), seconds, only_later=True)
        return 200, self.entry(record)

    async def set_timeout(self, principal: Principal, named: str, call: Call) -> tuple[int, None]:
        """Moves the end of a sandbox: to so many seconds from now. Answers 204."""
        body = await call.json(principal.name)
        _check_running(await self._find(principal, named))
        if "timeout" not in body:
            raise InvalidInput("timeout", "must be given, in seconds")
        await self.sandboxes().move_end(principal, run_id(named), number_of(body, "timeout", 0))
        return 204, None

    async def refresh(self, principal: Principal, named: str, call: Call) -> tuple[int, None]:
        """Lets a sandbox live for at least so many seconds more. Answers 204."""
        body = await call.json(principal.name)
        _check_running(await self._find(principal, named))
        seconds = number_of(body, "duration", self.settings.timeout_s)
        await self.sandboxes().move_end(principal, run_id(named), seconds, only_later=True)
        return 204, None

    async def set_network(self, principal: Principal, named: str, call: Call) -> tuple[int, None]:
        """Replaces the rules of a sandbox's caller. Answers 204."""
        body = await call.json(principal.name)
        await self._find(principal, named)
        rules = rules_of(body, self.network)
        if rules is None:
            rules = () if isinstance(self.network.run_code, str) else self.network.run_code
        await self.history().set_network(principal, run_id(named), [rule.text for rule in rules])
        return 204, None

    async def metrics(self, principal: Principal, named: str) -> tuple[int, Any]:
        """Tells what a sandbox takes now, as one measurement; none of a paused one. The words are its own."""
        record = await self._find(principal, named)
        if is_paused(record):
            return 200, []
        seen, limits, now = await self.look(record), record.limits, self.clock.now()
        measured = {
            "timestamp": _time(now),
            "timestampUnix": int(now),
            "cpuCount": max(1, round(limits.get("cpus", 1))),
            "cpuUsedPct": round(100 * _amount(seen, "cpu"), 1),
            "memUsed": int(_amount(seen, "memory")),
            "memTotal": limits.get("memory_mb", 0) * 1024**2,
            "memCache": 0,
            "diskUsed": int(_amount(seen, "disk_used")),
            "diskTotal": int(_amount(seen, "disk_total")),
        }
        return 200, [measured]

    async def pause(self, principal: Principal, named: str, call: Call) -> tuple[int, None]:
        """Pauses a sandbox. Answers 204, or 409 where it is paused. Raises ApiRefusal for its files alone."""
        body = await call.json(principal.name)
        await self._find(principal, named)
        flag_of(body, "requireHealthyGuest")  # no other is ever paused
        if not flag_of(body, "memory", usual=True):
            raise NotHere(_NO_FILES_ALONE)
        if not await self.sandboxes().pause(principal, run_id(named)):
            raise ApiRefusal(409, f"Sandbox {named} is already paused")
        return 204, None

    async def resume(self, principal: Principal, named: str, call: Call) -> tuple[int, Any]:
        """Lets a paused sandbox go on. Answers 201, or 409 where it runs."""
        body = await call.json(principal.name)
        _check_resumed(await self._find(principal, named), body)
        seconds = number_of(body, "timeout", self.settings.timeout_s)
        if not await self.sandboxes().resume(principal, run_id(named), seconds):
            raise ApiRefusal(409, f"Sandbox {named} is already running")
        return 201, self.entry(await self._find(principal, named))

    @property
    def domain(self) -> str:
        """Returns the domain of the sandboxes' ports, with a port that is not the usual one."""
        settings = self.services
        usual = 443 if settings.https else 80
        port = settings.public_port or (usual if settings.https else self.own_port())
        return settings.domain if port == usual else f"{settings.domain}:{port}"

    def entry(self, record: RunRecord) -> dict[str, Any]:
        """Returns the access to a sandbox, as the answer to its creation has it."""
        return {
            "templateID": _stay(record)["template"],
            "sandboxID": sandbox_id(record),
            "clientID": CLIENT,
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.tokens.envd(record.run_id),
            "trafficAccessToken": self.tokens.traffic(record.run_id),
            "domain": self.domain,
        }

    def told(self, record: RunRecord) -> dict[str, Any]:
        """Returns what the list has of a sandbox."""
        limits, stay = record.limits, _stay(record)
        left_s = stay["until"] - self.clock.boottime()
        began = record.started_at if record.started_at is not None else record.created_at
        return {
            "templateID": stay["template"],
            "alias": stay["template"],
            "sandboxID": sandbox_id(record),
            "clientID": CLIENT,
            "startedAt": _time(began),
            "endAt": _time(self.clock.now() + left_s),
            "cpuCount": max(1, round(limits.get("cpus", 1))),
            "memoryMB": limits.get("memory_mb", 0),
            "diskSizeMB": limits.get("disk_mb", 0),
            "metadata": stay["metadata"],
            "state": _state(record),
            "envdVersion": ENVD_VERSION,
        }

    async def _find(self, principal: Principal, named: str) -> RunRecord:
        try:
            return await self.sandboxes().find(principal, run_id(named))
        except RunNotFound:
            raise ApiRefusal(404, f"sandbox {shown(named)} not found") from None

    def _made_of(self, template: str) -> dict[str, str]:
        """Returns the environment or the image of a template. Raises ApiRefusal."""
        name = self.settings.templates.get(template, template)
        if is_by_digest(name):
            return {"image": name}
        if name not in self.environments():
            mend = "name an environment, an image by digest, or one of e2b_server.templates"
            raise ApiRefusal(404, f"template {shown(template)} not found: {mend}")
        return {"environment": name}


def _stay(record: RunRecord) -> dict[str, Any]:
    assert record.stay is not None, "it is a sandbox that its caller keeps"
    return record.stay


def _state(record: RunRecord) -> str:
    return _PAUSED if is_paused(record) else _RUNNING


def _check_running(record: RunRecord) -> None:
    """Raises ApiRefusal for a paused sandbox, which has no time that could be moved."""
    if is_paused(record):
        raise ApiRefusal(409, f"Sandbox {sandbox_id(record)} is paused; connect to it, and it goes on")


def _check_resumed(record: RunRecord, body: Mapping[str, Any]) -> None:
    """Raises NotHere for a way of going on that there is not."""
    if is_paused(record) and not flag_of(body, "memory", usual=True):
        raise NotHere("memory: a paused sandbox goes on with its memory, and is not begun anew")
    pauses = bool(_stay(record).get("pauses"))
    if flag_of(body, "autoPause", usual=pauses) != pauses:
        raise NotHere("autoPause: it is chosen when a sandbox is made")


def _at_its_end(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Returns whether a sandbox is paused at the end of its time, and whether requests wake it."""
    pauses, resume = flag_of(body, "autoPause"), body.get("autoResume")
    if resume is not None and not isinstance(resume, dict):
        raise InvalidInput("autoResume", "must be an object", shape(resume))
    wakes = flag_of(resume or {}, "enabled")
    if wakes and not pauses:
        raise InvalidInput("autoResume", "must come with autoPause")
    if pauses and not flag_of(body, "autoPauseMemory", usual=True):
        raise NotHere(_NO_FILES_ALONE)
    return pauses, wakes


def _amount(seen: Mapping[str, Any], name: str) -> float:
    """Returns an amount that a sandbox tells of itself; 0 for what cannot be one."""
    value = seen.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return float(value) if good and value is not None else 0.0


def _key(text: str) -> str | None:
    if not text:
        return None
    if len(text) > 255 or not text.isascii() or not text.isprintable():
        raise InvalidInput("Idempotency-Key", "must be at most 255 printable characters")
    return f"e2b:{text}"


def _refuse_what_is_not_here(body: Mapping[str, Any]) -> None:
    for name, why in (
        ("mcp", "mcp: this server's own /mcp serves MCP, and no gateway runs in sandboxes"),
        ("iam", "iam: sandboxes have no identity of their own elsewhere"),
        ("volumeMounts", "volumeMounts: there are no volumes"),
    ):
        if body.get(name):
            raise NotHere(why)


def _metadata_of(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise InvalidInput("metadata", "must be pairs as in a query") from None


def _fits(record: RunRecord, wanted: Mapping[str, str], since: datetime | None, template: str | None) -> bool:
    stay = _stay(record)
    if template is not None and stay["template"] != template:
        return False
    began = record.started_at if record.started_at is not None else record.created_at
    # As it is told: a caller that names a sandbox's own time means that one, too.
    is_later = since is None or datetime.fromtimestamp(began, UTC) >= since
    return is_later and wanted.items() <= stay["metadata"].items()


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("startedAfter", "must be a time of ISO 8601", shown(text)) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
