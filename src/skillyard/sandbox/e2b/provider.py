"""Calls to the provider of machines, through E2B's SDK, and the meaning of their failures.

Nothing is taken from the variables ``E2B_*`` of the server's environment: the key comes from the store of secrets, and
addresses come from the settings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from skillyard.config.backends import E2bSettings
from skillyard.domain.errors import BackendAway, InvalidInput, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.secret import EVERYBODY, Secret
from skillyard.values import dataclass

if TYPE_CHECKING:
    from e2b import AsyncSandbox

KEY_PROJECT, KEY_SKILL = "skillyard", "skillyard-e2b"
"""The scope of the secret that is the API key: a project and a skill that nobody has."""
KeyStore = Callable[[str, str, str], Awaitable[Secret | None]]
"""Finds a secret by name, project and skill."""
ROOT = "root"
"""The user of the machine that the stage needs."""
_PAGE = 100
_MOST_LISTED = 10_000
_MOST_SAID = 300
_HANDLE_MEND = "pip install 'skillyard[e2b]'"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the provider tells of it. ``age_s`` and ``left_s`` are by the provider's clock."""

    id: str
    metadata: Mapping[str, str]
    started: float
    running: bool


class Provider:
    """The provider that ``settings`` name. ``find`` gives its API key; nothing is opened before the first call."""

    def __init__(self, settings: E2bSettings, find: KeyStore | None) -> None:
        self._settings, self._find = settings, find

    async def create(
        self, template: str, metadata: Mapping[str, str], ttl_s: int, idempotency_key: str
    ) -> AsyncSandbox:
        """Returns a new machine without a way to the internet. Raises SandboxFault."""
        options = await self._options()
        with _told(options):
            return await _sdk().create(
                template,
                timeout=ttl_s,
                metadata=dict(metadata),
                allow_internet_access=False,
                lifecycle={"on_timeout": "kill"},
                idempotency_key=idempotency_key,
                **options,
            )

    async def connect(self, id: str, ttl_s: int) -> AsyncSandbox:
        """Returns a machine that lives, for at least ``ttl_s`` more. Raises SandboxGone, SandboxFault."""
        options = await self._options()
        with _told(options):
            return await _sdk().connect(id, timeout=ttl_s, **options)

    async def renew(self, id: str, ttl_s: int) -> None:
        """Has a machine end in ``ttl_s``. Raises SandboxGone, SandboxFault."""
        options = await self._options()
        with _told(options):
            await _sdk().set_timeout(id, ttl_s, **options)

    async def kill(self, id: str) -> None:
        """Ends a machine. It does nothing where the machine is gone. Raises SandboxFault."""
        options = await self._options()
        with _told(options):
            await _sdk().kill(id, **options)

    async def find(self, id: str) -> Machine | None:
        """Returns a machine by its id; None for one that the provider does not have. Raises SandboxFault."""
        options = await self._options()
        try:
            with _told(options):
                return _machine(await _sdk().get_info(id, **options))
        except SandboxGone:
            return None

    async def list(self, metadata: Mapping[str, str]) -> AsyncIterator[Machine]:
        """Yields the machines with all of that metadata. Raises SandboxFault."""
        options, sdk = await self._options(), _sdk()
        from e2b import SandboxQuery

        pages = sdk.list(query=SandboxQuery(metadata=dict(metadata)), limit=_PAGE, **options)
        count = 0
        while pages.has_next and count < _MOST_LISTED:
            with _told(options):
                found = [_machine(one) for one in await pages.next_items()]
            count += max(1, len(found))
            for one in found:
                # The filter is the provider's word; a machine of somebody else is never taken for ours.
                if all(one.metadata.get(name) == value for name, value in metadata.items()):
                    yield one

    @contextmanager
    def told(self) -> Iterator[None]:
        """Gives the failures of calls to a machine their meaning. Raises SandboxGone, BackendAway, SandboxFault."""
        with _told({}):
            yield

    async def _options(self) -> dict[str, Any]:
        ours = self._settings
        for name, given in (("E2B_SANDBOX_URL", ours.sandbox_url), ("E2B_API_URL", True)):
            if not given and os.environ.get(name):
                setting = f"e2b.{name.removeprefix('E2B_').lower()}"
                raise InvalidInput(setting, f"{name} is in the server's environment; write it there, or unset it", "")
        options: dict[str, Any] = {
            "api_key": await self._key(),
            "domain": ours.domain,
            "api_url": ours.api_url or f"https://api.{ours.domain}",
            "http_version": ours.http_version,
            "request_timeout": ours.request_timeout_s,
            "debug": False,
        }
        return options | ({"sandbox_url": ours.sandbox_url} if ours.sandbox_url else {})

    async def _key(self) -> str:
        """Returns the API key. Raises SandboxFault, StoreFault."""
        name = self._settings.api_key_secret
        words = f"skillyard secret set {name} --project {KEY_PROJECT} --skills {KEY_SKILL}"
        secret = None if self._find is None else await self._find(name, KEY_PROJECT, KEY_SKILL)
        if secret is None:
            raise SandboxFault(f"e2b.api_key_secret: the store has no secret {name} for us; {words}")
        if secret.scope == EVERYBODY:
            raise SandboxFault(f"e2b.api_key_secret: every skill may have the secret {name}; delete it, then {words}")
        return secret.value


@cache
def _sdk() -> type[AsyncSandbox]:
    try:
        from e2b import AsyncSandbox
    except ImportError as error:
        raise SandboxFault(f"E2B's SDK is not installed ({error}); {_HANDLE_MEND}") from None
    logging.getLogger("httpx").setLevel(logging.WARNING)  # only the SDK uses it; it tells of each request
    return AsyncSandbox


def _machine(info: Any) -> Machine:
    metadata = {str(name): str(value) for name, value in (info.metadata or {}).items()}
    return Machine(str(info.sandbox_id), metadata, info.started_at.timestamp(), str(info.state.value) == "running")


@contextmanager
def _told(options: Mapping[str, Any]) -> Iterator[None]:
    """Gives the SDK's failures their meaning. The key is in none of them. Raises SandboxFault without the SDK."""
    _sdk()
    import e2b
    import httpx
    from connectrpc.errors import ConnectError

    gone = (e2b.NotFoundException, e2b.SandboxNotRunningException)
    away = (e2b.TimeoutException, httpx.HTTPError, ConnectError, OSError)
    try:
        yield
    except gone as error:
        raise SandboxGone(f"the provider has no such machine: {_said(error, options)}") from None
    except e2b.AuthenticationException as error:
        mend = "store a valid one under the name in e2b.api_key_secret"
        raise SandboxFault(f"the provider refuses the API key: {_said(error, options)}; {mend}") from None
    except e2b.RateLimitException as error:
        mend = "run fewer sandboxes at a time, or have the provider's limit raised"
        raise SandboxFault(f"the provider's rate limit is reached: {_said(error, options)}; {mend}") from None
    except e2b.ServiceBusyException as error:
        raise SandboxFault(f"the provider is busy: {_said(error, options)}; try again later") from None
    except away as error:
        raise BackendAway(f"the provider does not answer: {_said(error, options)}") from None
    except SkillyardError:
        raise
    except Exception as error:  # noqa: BLE001 - the SDK raises of every kind for answers of another form
        raise SandboxFault(f"the provider refuses: {_said(error, options)}") from None


def _said(error: BaseException, options: Mapping[str, Any]) -> str:
    """Returns a provider's message, printable, bounded and without the key."""
    text = str(error) or type(error).__name__
    if key := options.get("api_key"):
        text = text.replace(key, "…")  # whole: a cut one would still tell its beginning
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_SAID]).strip()
