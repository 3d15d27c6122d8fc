"""The two ways to the ports of services, each with its own way to tell who asks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlencode

import h11
from starlette.types import ASGIApp, Receive, Scope, Send

from skillyard.config.services import ServiceSettings
from skillyard.domain.errors import Forbidden, InvalidInput, Unauthenticated
from skillyard.domain.principal import Principal
from skillyard.engine.services.access import NotListening, PortAccess
from skillyard.engine.services.idle import Connection
from skillyard.engine.services.names import TICKET, path_of
from skillyard.engine.services.tickets import Tickets
from skillyard.faces.http.errors import BadRequest, MethodNotAllowed, Misdirected, NotFound, Unavailable
from skillyard.faces.http.guard import Authenticator, authorization_of, check_head, principal_of
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import SECURITY_HEADERS, end
from skillyard.faces.http.services.exchange import Bounds, Exchange
from skillyard.faces.http.services.fields import ByHost, ByPath
from skillyard.faces.http.services.revocation import Revocation, Still
from skillyard.faces.http.services.switching import TUNNELLED, check_offer, check_tunnel, relay
from skillyard.values import dataclass

_PATH = re.compile(rb"/services/(run_[A-Za-z0-9]{1,64})/([1-9][0-9]{0,4})(/.*)?", re.DOTALL)
_LABEL = re.compile(r"([1-9][0-9]{0,4})-([a-z0-9]{1,52})")
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a service, and the target of a request there, which begins with ``/``."""

    task_id: str
    port: int
    target: bytes


def by_path(raw_path: bytes) -> Place | None:
    """Returns the place that a path names as it was sent; None for one that names none."""
    match = _PATH.fullmatch(raw_path)
    if match is None or int(match[2]) > _MOST_PORT:
        return None
    return Place(match[1].decode("ascii"), int(match[2]), match[3] or b"/")


def name_pattern(domain: str) -> re.Pattern[bytes]:
    """Returns the pattern of the names of ports. Other names below the domain may be the server's own."""
    return re.compile(rf"{_LABEL.pattern}\.{re.escape(domain)}".encode("ascii"))


def by_host(name: str, domain: str, raw_path: bytes) -> Place | None:
    """Returns the place that a name below ``domain`` means; None for another name."""
    match = _LABEL.fullmatch(name.removesuffix(f".{domain}"))
    if match is None or int(match[1]) > _MOST_PORT or not raw_path.startswith(b"/"):
        return None
    return Place(f"run_{match[2]}", int(match[1]), raw_path)


@dataclass(frozen=True, slots=True)
class Passes:
    """Tokens for the ports of one sandbox, which come in a ``field`` of their own.

    ``owner`` returns the owner of a run whose token it is; None for another token.
    """

    field: bytes
    owner: Callable[[str, str], Awaitable[Principal | None]]

    def taken(self, scope: Scope) -> list[str]:
        """Returns the tokens of a request, and takes them out: no service sees them."""
        found = [value.decode("latin-1") for name, value in scope["headers"] if name == self.field]
        if found:
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != self.field]
        return found


@dataclass(frozen=True, slots=True)
class ServiceFace:
    """Everything that this face works with.

    The first two are called at each request, since a server listens before its services have started.
    """

    access: Callable[[], PortAccess]
    tickets: Callable[[], Tickets]
    still: Still
    authenticator: Authenticator
    settings: ServiceSettings
    passes: Passes | None = None
    """Tokens for the ports of one sandbox, where sandboxes have such."""


class ServicePorts:
    """Passes requests on to ports of services. Raises NotFound, Unavailable and what an exchange raises."""

    def __init__(self, face: ServiceFace) -> None:
        self._access = face.access
        self._revocation = Revocation(face.still)
        settings = face.settings
        self._bounds = Bounds(settings.answer_s, settings.idle_s, settings.body_bytes)

    async def pass_on(
        self, scope: Scope, receive: Receive, send: Send, principal: Principal, place: Place, rules: ByPath | ByHost
    ) -> None:
        target = place.target + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = _request(scope, target, rules)
        async with self._connected(principal, place, again=_may_be_sent_twice(request)) as connection:
            if not connection.may_be_kept:
                request = _closing(request)
            exchange = Exchange(connection, request, lambda fields: rules.answer(fields, target), self._bounds)
            switched = None
            try:
                async with self._revocation.while_good(principal.name):
                    switched = await exchange.run(receive, send)
                    if switched is not None:
                        await relay(scope, connection.stream, switched, self._bounds.idle_s)
            except TimeoutError:
                if switched is None:
                    raise exchange.broken(Unauthenticated("the token was revoked", presented=True)) from None

    async def tunnel(self, scope: Scope, principal: Principal, place: Place) -> None:
        """Passes bytes as they are between the caller and the port. Raises NotFound, Unavailable."""
        async with self._connected(principal, place) as connection:
            with suppress(TimeoutError):
                async with self._revocation.while_good(principal.name):
                    await relay(scope, connection.stream, TUNNELLED, self._bounds.idle_s, halves=True)

    @asynccontextmanager
    async def _connected(self, principal: Principal, place: Place, *, again: bool = False) -> AsyncIterator[Connection]:
        async with AsyncExitStack() as stack:
            try:
                connecting = self._access().connect(principal, place.task_id, place.port, again=again)
                connection = await stack.enter_async_context(connecting)
            except NotListening as error:
                raise Unavailable(error.message, error.retry_after_ms) from None
            except InvalidInput as error:  # neither the service nor the port is told apart from what is not there
                raise NotFound(error.message) from None
            yield connection


def _may_be_sent_twice(request: h11.Request) -> bool:
    """Returns whether a request changes nothing and may be repeated (RFC 9110 §9.2.2)."""
    names = {name for name, _ in request.headers}
    return request.method in (b"GET", b"HEAD", b"OPTIONS") and not names & _ALONE


_ALONE = {b"content-length", b"transfer-encoding", b"upgrade"}


def _closing(request: h11.Request) -> h11.Request:
    """Returns the request as one that is the last of its connection."""
    if any(name == b"connection" for name, _ in request.headers):
        return request
    fields = [*request.headers, (b"connection", b"close")]
    return h11.Request(method=request.method, target=request.target, headers=fields)


def _request(scope: Scope, target: bytes, rules: ByPath | ByHost) -> h11.Request:
    """Returns the request as the service gets it. Raises BadRequest."""
    method = scope["method"].upper()
    if method in ("CONNECT", "TRACE"):
        raise BadRequest(f"{method} is not passed on to services")
    offers = check_offer(scope)
    fields = rules.request(scope["headers"])
    framing = [(name, value) for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")]
    if len({value for _, value in framing}) > 1:
        raise BadRequest("Content-Length: came more than once")
    fields += framing[:1]
    fields += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if offers else []
    try:
        return h11.Request(method=method, target=target, headers=fields)
    except h11.LocalProtocolError as error:
        raise BadRequest(f"the request cannot be passed on: {error}"[:200]) from None


class PathEndpoint:
    """``/services/<task>/<port>/…``, behind the guard and the bearer token of every path here."""

    def __init__(self, face: ServiceFace) -> None:
        self._ports = ServicePorts(face)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = by_path(scope["raw_path"])
        if place is None:
            raise NotFound("there is nothing at this path; use /services/<task_id>/<port>/")
        if any(name == TICKET for name, _ in _query(scope)):
            raise BadRequest(f"{TICKET}: is for a host name of the port's own, not for this path")
        if check_tunnel(scope):
            await self._ports.tunnel(scope, principal_of(scope), place)
            return
        rules = ByPath(path_of(place.task_id, place.port), place.port)
        await self._ports.pass_on(scope, receive, send, principal_of(scope), place, rules)


class HostEndpoint:
    """``<port>-<task>.<domain>``, where a ticket becomes a cookie of that host.

    Programs send a bearer token.
    """

    def __init__(self, face: ServiceFace, lifecycle: Lifecycle) -> None:
        self._ports = ServicePorts(face)
        self._face = face
        self._lifecycle = lifecycle
        self._cookie = "__Host-skillyard" if face.settings.https else "skillyard-service"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origins = check_head(scope)
        name, _, _ = host.partition(":")
        place = by_host(name, self._face.settings.domain, scope["raw_path"])
        if place is None:
            raise Misdirected("Host: is not the name of a service's port")
        self._lifecycle.check()
        scheme = "https" if self._face.settings.https else scope["scheme"]
        rules = ByHost(host, scheme, self._cookie)
        query = _query(scope)
        if any(name == TICKET for name, _ in query):
            await self._take_ticket(scope, send, place, rules, query)
            return
        _check_site(scope, f"{scheme}://{host}", origins)
        await self._ports.pass_on(scope, receive, send, await self._principal(scope, place, rules), place, rules)

    async def _principal(self, scope: Scope, place: Place, rules: ByHost) -> Principal:
        passes, given = self._face.passes, []
        if passes is not None:
            given = passes.taken(scope)
        authorization = authorization_of(scope)
        if authorization is not None:
            return await self._face.authenticator.principal(authorization)
        if passes is not None and given:
            owner = await passes.owner(place.task_id, given[0]) if len(given) == 1 else None
            if owner is None:
                raise Unauthenticated(f"{passes.field.decode()}: is not the token of this sandbox", presented=True)
            return owner
        for value in rules.ours(scope["headers"])[:8]:
            name = self._face.tickets().visitor(value, place.task_id, place.port)
            principal = None if name is None else await self._face.still(name)
            if principal is not None:
                return principal
        raise Unauthenticated("this host wants a ticket: open the URL that skills.open_service gives")

    async def _take_ticket(
        self, scope: Scope, send: Send, place: Place, rules: ByHost, query: list[tuple[str, str]]
    ) -> None:
        """Gives a cookie for a ticket, and sends the browser on without it."""
        if scope["method"] != "GET":
            raise MethodNotAllowed("GET")
        tickets = [value for name, value in query if name == TICKET]
        cookie = self._face.tickets().redeem(tickets[0], place.task_id, place.port) if len(tickets) == 1 else None
        if cookie is None:
            raise Unauthenticated("this ticket is not known, was used, or is older than a minute; ask for another one")
        rest = urlencode([(name, value) for name, value in query if name != TICKET])
        target = place.target + (f"?{rest}".encode() if rest else b"")
        secure = "; Secure" if self._face.settings.https else ""
        age = int(self._face.settings.cookie_s)
        headers = [
            # The whole address: a path that begins with // would be read as that of another host.
            (b"location", f"{rules.scheme}://{rules.host}".encode("ascii") + target),
            (b"set-cookie", f"{self._cookie}={cookie}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{secure}".encode()),
            (b"content-length", b"0"),
            *SECURITY_HEADERS,
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await end(send)


def _query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise BadRequest("the query has more than 1000 parameters") from None


def _check_site(scope: Scope, own: str, origins: list[str]) -> None:
    """Raises Forbidden for a request that a page of another origin made.

    Our cookie goes along with that: all services are one site for a browser.
    """
    if any(origin != own for origin in origins):
        raise Forbidden("Origin: other sites may not call this service")
    said = {name: value.lower() for name, value in scope["headers"] if name.startswith(b"sec-fetch-")}
    if said.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
        return
    opened = said.get(b"sec-fetch-mode") == b"navigate" and said.get(b"sec-fetch-dest") == b"document"
    if not opened or scope["method"] not in ("GET", "HEAD"):
        raise Forbidden("Sec-Fetch-Site: other sites may open this service, and neither call nor frame it")


class ByHostName:
    """ASGI middleware: ``services`` gets requests for names of ports, ``app`` all others."""

    def __init__(self, app: ASGIApp, services: ASGIApp, domain: str) -> None:
        self._app = app
        self._services = services
        self._name = name_pattern(domain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == b"host":
                host, _, port = value.lower().partition(b":")
                mine = self._name.fullmatch(host) is not None and (port.isdigit() or not port)
                await (self._services if mine else self._app)(scope, receive, send)
                return
        await self._app(scope, receive, send)
