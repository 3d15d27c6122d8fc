"""Attacks on callers' credentials, and by foreign names, pages and projects, at services."""

from __future__ import annotations

from skillyard.testing.attacks.attack import CONTAINED, WORKS, Family, Judgement, NotShown, escaped, too_tight
from skillyard.verify.listening import OFFER, Service, add

CALLERS = Family("callers", invariants=(9,))

_TELLING = r"""
    peer.sendall(whole(head + b"|on %d" % port))
"""


_OF_PROXIES = (
    b"x-forwarded-for: 10.0.0.1\r\nx_forwarded_for: 10.0.0.1\r\nproxy-authorization: Basic cGxhbnRlZA==\r\n"
    b"via: planted\r\nforwarded: for=planted\r\n"
)


async def _credentials(service: Service) -> Judgement:
    cookie = await service.cookie()
    secret = cookie.partition(b"=")[2].strip()
    by_path = await service.ask("/head", b"x-own: kept\r\n" + cookie + _OF_PROXIES)
    own = b"referer: http://" + service.host + b"/?skillyard_ticket=planted\r\n"
    by_name = await service.named("/head", b"x-own: kept\r\n" + cookie + own + _OF_PROXIES)
    token = f"authorization: Bearer {service.front.token}\r\n".encode()
    bearer = await service.named("/head", b"x-own: kept\r\n" + token)
    for how, said in (("by path", by_path), ("by name", by_name), ("by name with a token", bearer)):
        if said.status != 200 or b"x-own: kept" not in said.body:
            raise NotShown(f"{how} the service was not reached: {said.raw[:200]!r}")
        for what in (service.front.token.encode(), secret, b"10.0.0.1", b"planted", b"cGxhbnRlZA"):
            if what in said.body:
                return escaped(f"{how} the service saw {what[:12]!r}")
    return CONTAINED


add(
    CALLERS, "credentials", "Read the token, cookie and addresses of callers in their requests.", _TELLING, _credentials
)


async def _names(service: Service) -> Judgement:
    """The answer of the service has a mark; no misleading name may bring it."""
    cookie, token = await service.cookie(), f"authorization: Bearer {service.front.token}\r\n".encode()
    if b"|on " not in (await service.named("/x", cookie)).raw:
        raise NotShown("the service is not reached by its name")
    mine, bare = service.host, service.host.partition(b":")[0]
    task = service.task_id.removeprefix("run_").encode()
    domain = b"." + service.front.domain.encode() + b":%d" % service.front.port
    others = (
        b"%d-%s%s" % (service.port + 1, task, domain), b"%d-%s%s" % (service.port, b"0" * 32, domain),
        b"0%d-%s%s" % (service.port, task, domain), b"x." + mine, bare + b".evil.example", bare + b".:1",
        bare + b":1@evil.example", mine + b"," + service.front.host, bare + b":/x", b"[" + bare + b"]",
    )  # fmt: skip
    for host in others:
        for rights in (cookie, token):
            if b"|on " in (await service.named("/x", rights, host=host)).raw:
                return escaped(f"the name {host!r} reached a port")
    two = (b"GET /x HTTP/1.1\r\nhost: %b\r\nhost: %b\r\n", b"GET http://%b/x HTTP/1.1\r\nhost: %b\r\n")
    for head in two:
        for pair in ((mine, service.front.host), (service.front.host, mine)):
            raw = head % pair + token + b"connection: close\r\n\r\n"
            if b"|on " in (await service.front.say(raw)).raw:
                return escaped(f"two names reached a port: {pair!r}")
    return CONTAINED


add(
    CALLERS,
    "names",
    "Reach ports by names that two readers take differently, and with the cookie of another.",
    _TELLING,
    _names,
)


async def _pages(service: Service) -> Judgement:
    """Pages of other services are of the same site for a browser, which sends our cookie along."""
    cookie = await service.cookie()
    neighbour = b"http://" + service.host.replace(b"%d-" % service.port, b"%d-" % (service.port + 1), 1)
    own = b"http://" + service.host
    if b"|on " not in (await service.named("/x", cookie + b"origin: " + own + b"\r\n")).raw:
        raise NotShown("a page of the service's own does not reach it")
    for said in (
        b"origin: " + neighbour, b"origin: null", b"origin: " + own + b"\r\norigin: " + neighbour,
        b"sec-fetch-site: same-site\r\nsec-fetch-mode: no-cors\r\nsec-fetch-dest: script",
        b"sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe",
        b"sec-fetch-site: same-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: object",
    ):  # fmt: skip
        if b"|on " in (await service.named("/x", cookie + said + b"\r\n")).raw:
            return escaped(f"a page of another service called this one with its user's cookie: {said!r}")
    return CONTAINED


add(CALLERS, "pages", "Call and frame a service with its user's cookie from another service's page.", _TELLING, _pages)


async def _stealing(service: Service) -> Judgement:
    strange = service.front.strange
    theirs = await service.ask("/x", token=strange)
    none = await service.ask("/x", port=1)
    token = f"authorization: Bearer {strange}\r\n".encode()
    named = await service.named("/x", token)
    closed = await service.ask("/x", port=service.port + 1)
    tunnel = b"connection: Upgrade\r\nupgrade: skillyard-tcp\r\n"
    through = await service.front.say(service.request("/x", tunnel, token=strange), 2.0)
    for how, said in (("by path", theirs), ("by name", named), ("an unexposed port", closed), ("by a tunnel", through)):
        if b"|on " in said.raw or said.status not in (401, 403, 404):
            return escaped(f"{how}: {said.raw[:200]!r}")
    if none.status != theirs.status:
        return escaped(f"a port of others is {theirs.status}, none is {none.status}")
    return CONTAINED


add(CALLERS, "stealing", "Reach another project's service, and a port that is not exposed.", _TELLING, _stealing)

_SERVING = r"""
    if path == "/ws":
        peer.sendall(SWITCHING + accept(head) + b"\r\nhello")
        peer.recv(1)
    elif path == "/chunks":
        peer.sendall(OK + b"transfer-encoding: chunked\r\n\r\n" + b"5\r\nhello\r\n" * 100 + b"0\r\n\r\n")
    else:
        peer.sendall(whole(b"hello" * 100_000))
"""


async def _works(service: Service) -> Judgement:
    cookie = await service.cookie()
    for path, least in (("/body", 500_000), ("/chunks", 500)):
        for how, said in (("path", await service.ask(path)), ("name", await service.named(path, cookie))):
            if said.status != 200 or len(said.body) < least:
                return too_tight(f"{path[1:]} by {how}: {said.status}, {len(said.body)} bytes")
    said = await service.front.say(service.request("/ws", OFFER), 2.0)
    return WORKS if said.body == b"hello" else too_tight(f"a websocket: {said.raw[:200]!r}")


add(
    CALLERS,
    "serving",
    "Answer whole, in chunks and as a websocket, by path and by name.",
    _SERVING,
    _works,
    benign=True,
    invariants=(),
)
