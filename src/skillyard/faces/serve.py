"""The server process, from its settings to its end.

Two files of the data directory hold the URL of the server and the owner's token, for the command line and the client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import Route
from starlette.types import ASGIApp

from skillyard.config.settings import Settings
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.principal import LOCAL, OWNER, Principal
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.skill.skill import Finding
from skillyard.engine.app import App
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.services.sandboxes import TOOL as SANDBOXES
from skillyard.engine.table import METHODS, invoke
from skillyard.faces.http.app import METRICS, Endpoint, HttpLimits, create_app
from skillyard.faces.http.guard import Authenticator, Bearer, Everybody, Hosts, is_loopback
from skillyard.faces.http.lazy import Lazy, Part
from skillyard.faces.http.lifecycle import Lifecycle, Phase
from skillyard.faces.http.oidc import METADATA, IssuedTokens, metadata_of, resource_of
from skillyard.faces.http.server import HttpServer, listen, url_of
from skillyard.faces.http.service import StopRequest, on_signals, run_service
from skillyard.faces.http.services.endpoint import ServiceFace
from skillyard.faces.http.services.revocation import Still
from skillyard.faces.http.tasks import TaskEvents
from skillyard.faces.jails.listener import JailListener
from skillyard.faces.news import News
from skillyard.faces.observability.logs import fan_out, log_event, logging_to
from skillyard.faces.observability.metrics import Metrics
from skillyard.faces.rpc.dispatcher import Dispatcher, Invoke
from skillyard.ports.sandbox import Counting, Remote
from skillyard.ports.tokens import TokenStore
from skillyard.runtime import Runtime

if TYPE_CHECKING:
    from skillyard.faces.e2b.assembly import E2bFace
    from skillyard.faces.observability.tracing import Tracing

logger = logging.getLogger("skillyard.server")
_TOOLS = (*METHODS, METRICS, SANDBOXES)
"""The tools that a profile can name."""
_TOLD = 10
"""Problems of skills that are logged one by one."""


class CannotListen(SkillyardError):
    """The address is taken, is not ours, or needs rights that we lack."""

    type = "CannotListen"
    code = -32602


async def serve(settings: Settings, *, no_auth: bool = False, announce: Callable[[str], None]) -> None:
    """Serves a data directory until SIGTERM or SIGINT.

    ``announce`` is called with the URL when the server is ready. Raises InvalidInput for ``no_auth`` on an address that
    others can reach, CannotListen, ProtectionMissing when the host lacks a demanded protection, and the errors of a
    runtime's start.
    """
    server = settings.server
    with _listening(server.host, server.port) as sock:
        if no_auth and not is_loopback(sock.getsockname()[0]):
            raise InvalidInput(
                "--no-auth", "is for loopback only: any program that reaches the port could execute code"
            )
        with logging_to(level=server.log_level, style=server.log_format), _tracing() as tracing:
            await _Process(settings, sock, no_auth, announce, tracing).run()


class _Process:
    """The parts of one server process."""

    def __init__(
        self,
        settings: Settings,
        sock: socket.socket,
        no_auth: bool,
        announce: Callable[[str], None],
        tracing: Tracing | None,
    ) -> None:
        self._settings = settings
        self._sock = sock
        self._no_auth = no_auth
        self._announce = announce
        self._tracing = tracing
        self._url = url_of(settings.server.host, sock)
        self._metrics = Metrics(METHODS)
        self._news = News()
        observers = [log_event, self._metrics.observe, self._news.observe, *([tracing.observe] if tracing else [])]
        self._runtime = Runtime(settings=settings, observer=fan_out(*observers))
        self._lifecycle = Lifecycle()
        self._mcp: Lazy | None = None

    async def run(self) -> None:
        stop = StopRequest()
        with on_signals(stop):
            await run_service(
                HttpServer(self._app()),
                self._sock,
                self._lifecycle,
                self._content(),
                announce=lambda: self._announce(self._url),
                end_runs=self._end_runs,
                stop=stop,
                grace_s=self._settings.server.grace_s,
            )

    async def _invoke(self, principal: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
        return await invoke(self._runtime.app, principal, name, params)

    def _app(self) -> Any:
        call = self._tracing.traced(self._invoke) if self._tracing else self._invoke
        authenticator: Authenticator = Everybody()
        if not self._no_auth:
            authenticator = Bearer(self._runtime.tokens, self._runtime.bound)
        if not self._no_auth and self._settings.oidc.on:
            authenticator = IssuedTokens(self._settings.oidc, authenticator, self._runtime.bound)
        mcp = self._settings.mcp.enabled
        self._mcp = mcp_part(self._runtime, call, self._lifecycle, self._metrics, self._news) if mcp else None
        app = application(self._runtime, authenticator, self._lifecycle, self._metrics, self._still, call, self._mcp)
        return self._tracing.continuing(app) if self._tracing else app

    async def _still(self, name: str) -> Principal | None:
        if self._no_auth:
            return LOCAL if name == LOCAL.name else None
        return await with_token(self._runtime, name)

    @asynccontextmanager
    async def _content(self) -> AsyncIterator[Mapping[str, Any]]:
        """The runtime, ready to serve, and the files by which others find it."""
        data_dir = self._settings.data_dir
        async with self._runtime:
            app = self._runtime.app
            app.services.endpoints.own_port = self._sock.getsockname()[1]
            offer = app.backends.default
            assert offer is not None, "it was probed at the start"
            if offer.probe.ready or not isinstance(offer.backend, Remote):  # an engine or a server is waited for
                offer.check_ready()
            if not self._no_auth:
                await ensure_owner_token(self._runtime.tokens, data_dir / "token")
            self._watch(app)
            self._lifecycle.dead = lambda: {**app.parts.dead, **app.presence.default_away}
            self._lifecycle.older = lambda: app.parts.older
            self._lifecycle.draining = lambda: app.drain.on
            app.drain.changed = _tell_of_draining
            self._remark(offer, app.backends)
            _tell_of_skills(await app.skills.store.problems())
            principal = LOCAL if self._no_auth else OWNER
            jails = JailListener(self._runtime, principal, self._refusal, self._lifecycle.working)
            self._metrics.gauge("jails", "Jails of commands that run here.", lambda: jails.held)
            async with jails.open():
                with recorded_server(data_dir, self._url) as forget:
                    self._lifecycle.on_drain = partial(_each, forget, app.waiting.close)
                    logger.info("ready", extra={"url": self._url, "data_dir": str(data_dir)})
                    with _on_signal(signal.SIGUSR1, partial(app.drain.set, True)):
                        facts = _readiness(offer, self._settings)
                        app.presence.returned = lambda offer: facts.update(_readiness(offer, self._settings))
                        try:
                            yield facts
                        finally:
                            if self._mcp is not None:
                                await self._mcp.close()

    def _refusal(self) -> str:
        """Returns why no more jails are taken; nothing when they are."""
        if self._lifecycle.phase is Phase.DRAINING:
            return "it is stopping"
        return "it is draining" if self._runtime.app.drain.on else ""

    def _watch(self, app: App) -> None:
        self._metrics.gauge("runs_running", "Runs with a place.", lambda: app.admission.running)
        self._metrics.gauge("runs_waiting", "Runs that wait for one.", lambda: app.admission.waiting)
        self._metrics.gauge("sandboxes", "Sandboxes that runs use.", lambda: len(app.active))
        for backend in app.backends:
            if isinstance(backend, Counting):
                self._metrics.sandboxes(backend.name, backend.counts)

    def _remark(self, offer: Offer, backends: Backends) -> None:
        """Logs facts for the operator before the server is used."""
        for stronger in backends.passed_over:
            logger.warning("the stronger isolation '%s' was passed over: %s", stronger.name, stronger.refusal)
        if not offer.probe.ready:
            why = offer.probe.away and f"the backend '{offer.name}' is away: {offer.probe.away}"
            logger.warning("%s; it is tried again", why or offer.refusal)
        elif offer.name != backends.strongest:
            missing = ", ".join(name for name, p in offer.probe.protections.items() if p.level is Level.MISSING)
            logger.warning("runs are isolated by '%s'; missing here: %s", offer.name, missing or "nothing")
        for name, profile in self._settings.profiles.items():
            if unknown := [tool for tool in profile.tools if not any(fnmatchcase(known, tool) for known in _TOOLS)]:
                logger.warning("settings: profiles.%s: no method here is %s", name, ", ".join(unknown))
        for note in self._settings.notes:
            logger.warning("settings: %s", note)
        if not is_loopback(self._sock.getsockname()[0]):
            logger.warning("others can reach this server, and it speaks plain HTTP: put a proxy with TLS before it")

    async def _end_runs(self) -> None:
        """Each run in work is cancelled and recorded; its caller gets the Run object. Detached ones go on."""
        app = self._runtime.app
        app.close_admission()
        await app.detached.leave()
        async with asyncio.TaskGroup() as ending:
            for run_id in list(app.active):
                ending.create_task(app.runs.cancel(run_id, "the server is stopping"))


async def with_token(runtime: Runtime, name: str) -> Principal | None:
    """Returns the principal of a token that was not revoked, with the rights that it has now."""
    known = [info for info in await runtime.tokens.list() if info.principal.name == name and not info.revoked]
    return runtime.bound(known[0].principal) if known else None


def application(
    runtime: Runtime,
    authenticator: Authenticator,
    lifecycle: Lifecycle,
    metrics: Metrics,
    still: Still,
    call: Invoke,
    mcp: Lazy | None = None,
) -> ASGIApp:
    """Returns everything that is served over HTTP. ``call`` runs a method, ``still`` looks for a principal's token.

    It serves once the runtime was entered and ``lifecycle`` is ready.
    """
    settings = runtime.settings
    server, hosts = settings.server, Hosts(settings.server.host, settings.server.allowed_hosts)
    e2b = _e2b(runtime, authenticator, still, lifecycle, hosts)
    services = ServiceFace(
        access=lambda: runtime.app.services.access,
        tickets=lambda: runtime.app.services.tickets,
        still=still,
        authenticator=authenticator,
        settings=settings.services,
        passes=None if e2b is None else e2b.passes,
    )
    return create_app(
        dispatcher=Dispatcher(METHODS, call, metrics.call),
        blobs=lambda: runtime.app.blobs,
        skills=lambda: runtime.app.publisher,
        authenticator=authenticator,
        hosts=hosts,
        meter=metrics,
        lifecycle=lifecycle,
        limits=HttpLimits(
            server.body_bytes,
            8 * server.body_bytes,
            settings.blobs.max_bytes,
            settings.skills.upload_bytes,
        ),
        open_metrics=server.open_metrics,
        more_routes=(
            Route("/tasks/{task_id}/events", TaskEvents(lambda: runtime.app.task_service, lifecycle)),
            *([] if mcp is None else [Route("/mcp", mcp)]),
        ),
        open_routes=() if mcp is None else (Route(f"{METADATA}/mcp", Endpoint(metadata_of(settings.oidc))),),
        described={} if mcp is None else {"/mcp": lambda scope: resource_of(scope, f"{METADATA}/mcp")},
        services=services,
        beside=e2b,
        origins=server.allowed_origins,
    )


def _e2b(
    runtime: Runtime, authenticator: Authenticator, still: Still, lifecycle: Lifecycle, hosts: Hosts
) -> E2bFace | None:
    """Returns what puts the API of E2B before the server's own, where the settings want it."""
    if not runtime.settings.e2b_server.enabled:
        return None
    from skillyard.faces.e2b.assembly import E2bFace

    return E2bFace(runtime, authenticator, still, lifecycle, hosts)


def mcp_part(runtime: Runtime, call: Invoke, lifecycle: Lifecycle, metrics: Metrics, news: News) -> Lazy:
    """Returns ``/mcp``. Its SDK is imported when the first client comes."""

    def load() -> Part:
        from skillyard.faces.mcp.http import http_face

        return http_face(runtime, call, lifecycle, metrics.call, news)

    return Lazy(load)


@contextmanager
def _on_signal(number: signal.Signals, call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def _tell_of_draining(is_on: bool) -> None:
    if is_on:
        logger.warning("draining: new work is refused until the server is stopped or 'skillyard drain --undo'")
    else:
        logger.info("not draining any more: new work is taken")


def _tell_of_skills(problems: Sequence[Finding]) -> None:
    """The first errors; a note of all there are."""
    errors = [problem for problem in problems if problem.level == "error"]
    for problem in errors[:_TOLD]:
        logger.warning("a skill is not served: %s", str(problem).partition("\n")[0])
    if errors:
        logger.warning("problems of skills: %d; 'skillyard skill problems' shows them", len(errors))


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        sock = listen(host, port)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    with sock:
        yield sock


_WANTED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the environment names a collector (OpenTelemetry's own variables)."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environ.get(name) for name in _WANTED_BY)


@contextmanager
def _tracing() -> Iterator[Tracing | None]:
    if not wanted():
        yield None
        return
    from skillyard.faces.observability.tracing import Tracing, TracingUnavailable, exporting_provider

    try:
        provider = exporting_provider()
    except TracingUnavailable as error:
        # Spans are for observers: the server is worth more than they are.
        logger.warning("no spans are exported: %s", error.message)
        yield None
        return
    try:
        yield Tracing(provider)
    finally:
        provider.shutdown()


def _readiness(offer: Offer, settings: Settings) -> dict[str, Any]:
    """Returns the facts for ``/readyz``: the isolation of runs, and missing protections."""
    missing = sorted(name for name, p in offer.probe.protections.items() if p.level is Level.MISSING)
    return {
        "isolation": offer.name,
        "allow_degraded": sorted(settings.policy.allow_degraded),
        "missing": missing,
    }


def _each(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


@contextmanager
def recorded_server(data_dir: Path, url: str) -> Iterator[Callable[[], None]]:
    """``server.json`` says where the server is and which process, as long as the block lasts.

    It yields a function that ends this earlier. Before the port is free it has to: others may take that and be given
    the token.
    """
    file, record = data_dir / "server.json", {"url": url, "pid": os.getpid()}

    def forget() -> None:
        with suppress(OSError, ValueError):
            if json.loads(file.read_text(encoding="utf-8")) == record:
                file.unlink()

    write_private(file, json.dumps(record) + "\n")
    try:
        yield forget
    finally:
        forget()


async def ensure_owner_token(tokens: TokenStore, file: Path) -> None:
    """Makes the owner's token and keeps it in ``file`` at the first start.

    A token that was revoked, or whose file was removed, is not made again. The file comes first, so that the next start
    completes an interrupted one. Raises InvalidInput for a file without a token.
    """
    text = file.read_text(encoding="utf-8").strip() if file.exists() else None
    if text is not None and await tokens.verify(text) is not None:
        return
    if any(info.principal.name == OWNER.name for info in await tokens.list()):
        logger.warning("the owner's token is not the one in its file, or has none", extra={"file": str(file)})
        return
    if text is None:
        text = f"sky_{secrets.token_urlsafe(32)}"
        write_private(file, text + "\n")
    await tokens.create(OWNER, text)


def write_private(file: Path, text: str) -> None:
    """Make or replace a file that only we can read, whole or not at all. Raises OSError."""
    new = file.with_name(f".{file.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(text)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
