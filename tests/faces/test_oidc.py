"""Signed tokens of an issuer, whose keys a server on loopback has, and the metadata of ``/mcp``."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.types import Message

from skillyard.config.faces.oidc import OidcSettings
from skillyard.domain.errors import InvalidInput, Unauthenticated
from skillyard.domain.principal import Principal, Scope
from skillyard.faces.http.errors import headers_of
from skillyard.faces.http.guard import Authentication, Bearer
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.oidc import IssuedTokens, metadata_of, resource_of
from tests.faces.support import ALICE, Tokens

pytestmark = pytest.mark.anyio
AUDIENCE = "https://skills.example.com/mcp"


class Issuer:
    """An identity provider: its keys, and how often they were fetched."""

    def __init__(self) -> None:
        self.keys = {"one": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.shown = {"one"}
        self.fetched = 0
        self.url = ""
        self.metadata: dict[str, Any] = {}
        self.use: dict[str, str] = {}

    def document(self, path: str) -> dict[str, Any]:
        if path.endswith("/openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url.rstrip('/')}/keys", **self.metadata}
        self.fetched += 1
        keys = [(kid, key) for kid, key in self.keys.items() if kid in self.shown]
        algorithm = jwt.algorithms.RSAAlgorithm
        shown = [{**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, **self.use} for kid, key in keys]
        return {"keys": shown}

    def token(self, kid: str = "one", algorithm: str = "RS256", **changes: Any) -> str:
        claims = {"iss": self.url, "sub": "ann", "aud": AUDIENCE, "exp": int(time.time()) + 60, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.keys[kid], algorithm, headers={"kid": kid})

    def settings(self, **changes: Any) -> OidcSettings:
        return OidcSettings.model_validate({"issuer": self.url, "audience": AUDIENCE, **changes})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    one = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(one.document(self.path)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        one.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        server.shutdown()
        thread.join(10)


def tokens(issuer: Issuer, **changes: Any) -> IssuedTokens:
    return IssuedTokens(issuer.settings(**changes), Bearer(Tokens()))


async def who(authenticator: IssuedTokens, token: str) -> Principal:
    return await authenticator.principal(f"Bearer {token}")


async def test_a_token_of_the_issuer_is_a_principal_of_its_own(issuer: Issuer) -> None:
    taken = tokens(issuer, profile="agents", project="web")
    ann, bob = await who(taken, issuer.token()), await who(taken, issuer.token(sub="bob"))
    assert ann.name.startswith("oidc-")
    assert ann.name != bob.name
    assert ann == await who(taken, issuer.token())
    assert (ann.profile, ann.project, Scope.ADMIN in ann.scopes) == ("agents", "web", False)
    assert issuer.fetched == 1


async def test_a_subject_is_not_the_owner(issuer: Issuer) -> None:
    assert (await who(tokens(issuer), issuer.token(sub="owner"))).name not in ("owner", "local")


async def test_a_scope_narrows_and_never_widens(issuer: Issuer) -> None:
    some = await who(tokens(issuer), issuer.token(scope="openid discover admin"))
    assert some.scopes == {Scope.DISCOVER}


@pytest.mark.parametrize(
    ("named", "expected"),
    [(["discover"], {Scope.DISCOVER}), ({"discover": 1}, set()), (7, set()), ("", set())],
    ids=str,
)
async def test_a_scope_of_another_form_gives_no_more_than_it_names(
    issuer: Issuer, named: Any, expected: set[Scope]
) -> None:
    assert (await who(tokens(issuer), issuer.token(scope=named))).scopes == expected


async def test_an_issuer_may_end_with_a_slash(issuer: Issuer) -> None:
    issuer.url += "/"
    assert (await who(tokens(issuer), issuer.token())).name.startswith("oidc-")


@pytest.mark.parametrize(
    "metadata", [{"jwks_uri": "http://id.example.com/keys"}, {"issuer": "https://evil.test"}], ids=str
)
async def test_keys_of_metadata_that_cannot_be_trusted_are_not_taken(
    issuer: Issuer, metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    issuer.metadata = metadata
    with pytest.raises(Unauthenticated):
        await who(tokens(issuer), issuer.token())
    assert issuer.fetched == 0
    assert "jwks_uri: is not" in caplog.text or "another issuer" in caplog.text


async def test_a_key_for_encryption_signs_nothing(issuer: Issuer) -> None:
    issuer.use = {"use": "enc"}
    with pytest.raises(Unauthenticated):
        await who(tokens(issuer), issuer.token())


async def test_known_keys_do_not_wait_while_the_issuer_is_asked_for_others(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tokens(issuer)
    await who(taken, issuer.token())
    issuer.keys["two"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    asked, go_on = threading.Event(), threading.Event()

    def slow(path: str, document: Any = issuer.document) -> Any:
        asked.set()
        go_on.wait(10)
        return document(path)

    monkeypatch.setattr("skillyard.faces.http.oidc.AGAIN_S", -1.0)
    monkeypatch.setattr(issuer, "document", slow)
    unknown = asyncio.create_task(who(taken, issuer.token("two")))
    try:
        assert await asyncio.to_thread(asked.wait, 10)
        async with asyncio.timeout(2):
            await who(taken, issuer.token())
        assert not unknown.done()
    finally:
        go_on.set()
    with pytest.raises(Unauthenticated):
        await unknown


async def test_keys_are_not_trusted_for_ever_while_the_issuer_is_away(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tokens(issuer)
    await who(taken, issuer.token())
    monkeypatch.setattr(issuer, "document", lambda _path: None)
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 86_300)
    await who(taken, issuer.token())
    monkeypatch.setattr(loop, "time", lambda: now() + 86_500)
    with pytest.raises(Unauthenticated):
        await who(taken, issuer.token())


async def test_our_own_tokens_are_taken_beside(issuer: Issuer) -> None:
    assert await who(tokens(issuer), "alice-token") == ALICE
    assert issuer.fetched == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "https://other.example.com"},
        {"aud": None},
        {"iss": "https://evil.example.com"},
        {"iss": None},
        {"sub": None},
        {"exp": 1},
        {"exp": None},
        {"nbf": int(time.time()) + 3600},
        {"algorithm": "RS384"},
    ],
    ids=str,
)
async def test_a_token_that_lacks_something_is_refused(issuer: Issuer, changes: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        await who(tokens(issuer), issuer.token(**changes))


async def test_a_signature_must_be_the_issuers(issuer: Issuer) -> None:
    taken, good = tokens(issuer), issuer.token()
    head, claims, signature = good.split(".")
    none = jwt.encode(jwt.decode(good, options={"verify_signature": False}), "", "none", headers={"kid": "one"})
    broken, long = f"{head}.{claims}.{signature[:-8]}AAAAAAAA", f"{good}{'x' * 20_000}"
    said = jwt.decode(good, options={"verify_signature": False})
    shared = jwt.encode(said, "a secret that everybody knows by now", "HS256", headers={"kid": "one"})
    other = Issuer()
    other.url = issuer.url
    for forged in (broken, none, shared, other.token(), "a.b.c", long):
        with pytest.raises(Unauthenticated):
            await who(taken, forged)


async def test_unknown_keys_are_not_fetched_for_everybody(issuer: Issuer) -> None:
    taken = tokens(issuer)
    issuer.keys["two"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await who(taken, issuer.token("two"))
    assert issuer.fetched == 1


@pytest.mark.parametrize(
    "wrong",
    [{"issuer": "http://id.example.com"}, {"issuer": "ftp://x"}, {"algorithms": ["HS256"]}, {"algorithms": []}],
    ids=str,
)
def test_settings_that_would_be_weak_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, ValueError)):
        OidcSettings.model_validate(wrong)


def test_an_issuer_needs_an_audience() -> None:
    with pytest.raises((InvalidInput, ValueError), match="audience"):
        OidcSettings(issuer="https://id.example.com")


def scope(path: str) -> dict[str, Any]:
    host = [(b"host", b"skills.example.com")]
    return {"type": "http", "path": path, "method": "GET", "headers": host, "scheme": "https"}


async def nothing() -> Message:
    raise AssertionError


async def test_the_metadata_name_the_issuer(issuer: Issuer) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await metadata_of(issuer.settings())(scope("/.well-known/oauth-protected-resource/mcp"), nothing, send)
    told = json.loads(sent[1]["body"])
    assert (told["resource"], told["authorization_servers"]) == ("https://skills.example.com/mcp", [issuer.url])
    assert "admin" not in told["scopes_supported"]


async def test_a_refusal_at_a_described_path_says_where_the_metadata_are() -> None:
    lifecycle = Lifecycle()
    lifecycle.ready({})

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError

    described = {"/mcp": lambda each: resource_of(each, "/about")}
    guarded = Authentication(app, lifecycle, Bearer(Tokens()), (), described)
    for path, expected in (("/mcp", True), ("/rpc", False)):
        with pytest.raises(Unauthenticated) as refused:
            await guarded(scope(path), nothing, nothing)  # type: ignore[arg-type]
        header = headers_of(refused.value)["www-authenticate"]
        assert ('resource_metadata="https://skills.example.com/about"' in header) is expected
