"""Attacks by services through their answers: on the server's host and on other requests."""

from __future__ import annotations

import re

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, NotShown, escaped
from skillyard.verify.listening import OFFER, Service, add

ANSWERS = Family("answers", invariants=(7, 9))

_SPEAKING = r"""
    fields = (
        b"Set-Cookie: a=1; Path=/\r\nSET-COOKIE: b=1\r\nSet-Cookie2: c=1\r\nService-Worker-Allowed: /\r\n"
        b"Content-Security-Policy: default-src *\r\n"
        b"Content-Security-Policy: sandbox allow-scripts allow-same-origin\r\n"
        b"Clear-Site-Data: \"*\"\r\nStrict-Transport-Security: max-age=9\r\nAlt-Svc: h2=\"evil.example:443\"\r\n"
        b"Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\nRefresh: 0; url=/rpc\r\n"
        b"WWW-Authenticate: Basic realm=\"log in\"\r\nLink: </rpc>; rel=preload\r\nNEL: {}\r\nReport-To: {}\r\n"
        b"X-Accel-Redirect: /rpc\r\nX-Sendfile: /etc/passwd\r\nSurrogate-Control: max-age=9\r\n"
        b"Cache-Control: public, max-age=9\r\n"
        b"Connection: keep-alive, content-security-policy, x-content-type-options\r\n"
    )
    code = path[1:].encode()
    peer.sendall(whole(b"", fields, b"HTTP/1.1 " + code + b" Said\r\n"))
"""
_SPEAKS = (
    b"set-cookie", b"set-cookie2", b"service-worker-allowed", b"clear-site-data", b"strict-transport-security",
    b"alt-svc", b"access-control-allow-origin", b"access-control-allow-credentials", b"refresh", b"www-authenticate",
    b"link", b"nel", b"report-to", b"x-accel-redirect", b"x-sendfile", b"surrogate-control",
)  # fmt: skip


async def _site(service: Service) -> Judgement:
    for status in (200, 206, 302, 401, 404, 500):
        said = await service.ask(f"/{status}")
        if said.status != status:
            raise NotShown(f"an answer with the status {status} came as {said.status}")
        for name in _SPEAKS:
            if said.values(name):
                return escaped(f"{status}: {name.decode()} came out")
        if said.values(b"content-security-policy") != [b"sandbox"]:
            return escaped(f"{status}: the policy is {said.values(b'content-security-policy')}")
        if said.values(b"cache-control") != [b"no-store"]:
            return escaped(f"{status}: caching is {said.values(b'cache-control')}")
    return CONTAINED


add(
    ANSWERS,
    "site",
    "Set cookies, policies and workers for the server's own host from an answer by path.",
    _SPEAKING,
    _site,
)

_IN_PARTS = r"""
    kinds = {
        "/plain": [b"multipart/x-mixed-replace; boundary=b"],
        "/capitals": [b"Multipart/X-Mixed-Replace;boundary=b"],
        "/blanks": [b" \t multipart/x-mixed-replace ; boundary=b"],
        "/listed": [b"text/html, multipart/x-mixed-replace; boundary=b"],
        "/twice": [b"text/html", b"multipart/x-mixed-replace; boundary=b"],
        "/mixed": [b"multipart/mixed; boundary=b"],
        "/hidden": [b"multipart/byteranges; boundary=b, multipart/x-mixed-replace; boundary=b"],
        "/one": [b"text/html"],
    }
    body = b"--b\r\ncontent-type: text/html\r\nset-cookie: planted=1\r\n\r\n<script>planted</script>\r\n--b--\r\n"
    peer.sendall(whole(body, b"".join(b"content-type: " + kind + b"\r\n" for kind in kinds[path])))
"""


async def _parts(service: Service) -> Judgement:
    if (await service.ask("/one")).status != 200:
        raise NotShown("an answer in one part does not pass")
    for path in ("/plain", "/capitals", "/blanks", "/listed", "/twice", "/mixed", "/hidden"):
        said = await service.ask(path)
        kinds = b", ".join(said.values(b"content-type")).lower()
        if b"mixed" in kinds:
            return escaped(f"{path[1:]}: an answer in parts came out as {kinds!r}")
    return CONTAINED


add(ANSWERS, "parts", "Set cookies by the parts of an answer by path (multipart/x-mixed-replace).", _IN_PARTS, _parts)

_LEADING = r"""
    to = {
        "/0": b"http://evil.example/", "/1": b"//evil.example/", "/2": b"/\\evil.example/", "/3": b"/../../../../rpc",
        "/4": b"/%2e%2e/%2e%2e/%2e%2e/rpc", "/5": b"/a/..%2f..%2f..%2f..%2frpc", "/6": b"http://localhost:1/",
        "/7": b"javascript:alert(1)", "/8": b"http://localhost:%d@evil.example/" % PORT, "/9": b"https:/rpc",
        "/10": b"/..\\..\\..\\rpc", "/11": b"http:\\\\evil.example", "/12": b"\t//evil.example",
        "/13": b"..//../../../rpc",
    }
    peer.sendall(whole(b"", b"Location: " + to[path] + b"\r\nContent-Location: /rpc\r\n", b"HTTP/1.1 307 There\r\n"))
"""


async def _redirects(service: Service) -> Judgement:
    for number in range(14):
        said = await service.ask(f"/{number}")
        if said.status != 307:
            raise NotShown(f"a redirect came as {said.status}")
        for place in said.values(b"location") + said.values(b"content-location"):
            path = place.decode("latin-1")
            if not path.startswith(f"{service.prefix}/") or re.search(r"(^|[/\\]|%2f|%5c)(\.|%2e){2}", path, re.I):
                return escaped(f"a caller would send its token to {path!r}")
    return CONTAINED


add(ANSWERS, "redirects", "Lead callers with their token out of the service.", _LEADING, _redirects)

_SMUGGLING = r"""
    raw = {
        "/behind": whole(b"ok") + POISON,
        "/both": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + POISON,
        "/lengths": OK + b"content-length: 2\r\ncontent-length: 90\r\n\r\nok" + POISON,
        "/list": OK + b"content-length: 2, 90\r\n\r\nok" + POISON,
        "/sign": OK + b"content-length: +2\r\n\r\nok" + POISON,
        "/coding": OK + b"transfer-encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + POISON,
        "/blank": OK + b"content-length : 2\r\n\r\nok" + POISON,
        "/cr": OK + b"x-a: b\rset-cookie: poison=1\r\ncontent-length: 2\r\n\r\nok" + POISON,
        "/nul": OK + b"x-a: b\0\r\ncontent-length: 2\r\n\r\nok" + POISON,
        "/no-body": b"HTTP/1.1 204 None\r\n\r\n" + POISON,
        "/unchanged": b"HTTP/1.1 304 Same\r\ncontent-length: 9\r\n\r\n" + POISON,
        "/chunk": OK + b"transfer-encoding: chunked\r\n\r\n2;x=\n5\r\nok\r\n0\r\n\r\n" + POISON,
        "/trailer": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nset-cookie: poison=1\r\n\r\n" + POISON,
        "/interim": b"HTTP/1.1 103 Hints\r\nset-cookie: poison=1\r\n\r\n" + whole(b"ok") + POISON,
        "/fold": OK + b"x-a: b\r\n set-cookie: poison=1\r\ncontent-length: 2\r\n\r\nok" + POISON,
    }
    peer.sendall(raw[path])
"""
_SMUGGLED = (
    "/behind", "/both", "/lengths", "/list", "/sign", "/coding", "/blank", "/cr", "/nul", "/no-body", "/unchanged",
    "/chunk", "/trailer", "/interim", "/fold",
)  # fmt: skip


async def _smuggling(service: Service) -> Judgement:
    for path in _SMUGGLED:
        both = service.request(path, last=False) + service.request("/good")
        said = await service.front.say(both)
        if b" 299 " in said.raw or re.search(rb"(?:^|[\r\n])set-cookie", said.raw, re.I):
            return escaped(f"{path[1:]}: {said.raw[:300]!r}")
        for _ in range(2):
            if not (after := await service.ask("/good")).raw.endswith(b"good"):
                return escaped(f"{path[1:]}: the next answer is {after.raw[-100:]!r}")
    return CONTAINED


add(
    ANSWERS,
    "smuggling", "Hide a second answer behind an answer that two readers take apart differently.", _SMUGGLING,
    _smuggling,
)  # fmt: skip

_SWITCHING = r"""
    first = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n"
    if path in ("/unasked", "/guess"):
        peer.sendall(first + b"upgrade: websocket\r\nsec-websocket-accept: Z3Vlc3M=\r\n\r\nplanted")
        return
    proof = accept(head)
    said = {
        "/protocol": b"upgrade: websocket\r\nsec-websocket-protocol: other\r\n",
        "/other": b"upgrade: h2c\r\n",
        "/several": b"upgrade: websocket, h2c\r\n",
        "/cookie": b"upgrade: websocket\r\nset-cookie: planted=1\r\nservice-worker-allowed: /\r\n",
        "/twice": b"upgrade: websocket\r\n" + proof,
    }
    peer.sendall(first + said[path] + proof + b"\r\nplanted")
    peer.recv(65536)
"""


async def _websockets(service: Service) -> Judgement:
    for path, offer in (
        ("/unasked", b""),
        *((each, OFFER) for each in ("/guess", "/protocol", "/other", "/several", "/twice")),
    ):
        said = await service.ask(path, offer)
        if said.status == 101 or b"planted" in said.raw:
            return escaped(f"{path[1:]}: the service switched to what nobody asked for: {said.raw[:200]!r}")
    said = await service.front.say(service.request("/cookie", OFFER), 2.0)
    if said.status != 101 or b"planted" not in said.body:
        raise NotShown(f"a websocket does not work: {said.raw[:200]!r}")
    if said.values(b"set-cookie") or said.values(b"service-worker-allowed"):
        return escaped("the answer to a websocket sets a cookie")
    cookie = await service.cookie()
    for origin in (b"http://evil.example", b"null", b"https://" + service.host):
        if (await service.named("/cookie", cookie + b"origin: " + origin + b"\r\n" + OFFER)).status == 101:
            return escaped(f"a page of {origin!r} got a websocket")
    return CONTAINED


add(
    ANSWERS,
    "websockets",
    "Switch to protocols nobody asked for, and give websockets to other sites.",
    _SWITCHING,
    _websockets,
)

_COOKIES = r"""
    name = [part for part in head.split(b"\r\n") if part.lower().startswith(b"x-name: ")][0][8:]
    cookies = {
        "/0": name + b"=planted; Path=/", "/1": name.upper() + b"=planted", "/2": b"a=1; Domain=" + b"localhost",
        "/3": b"a=1; dOmAiN = .localhost", "/4": b"=" + name + b"=planted", "/5": name,
        "/6": b" " + name + b" =planted",
        "/7": b"a=1; Domain=localhost; Domain=evil.example",
    }
    peer.sendall(whole(b"", b"Set-Cookie: " + cookies[path] + b"\r\n"))
"""


async def _cookies(service: Service) -> Judgement:
    cookie = await service.cookie()
    name = cookie[8:].partition(b"=")[0]
    for number in range(8):
        said = await service.named(f"/{number}", cookie + b"x-name: " + name + b"\r\n")
        if said.status != 200:
            raise NotShown(f"the service was not reached: {said.raw[:200]!r}")
        for given in said.values(b"set-cookie"):
            if name.lower() in given.lower() or b"domain" in given.lower():
                return escaped(f"a cookie for others came out: {given!r}")
    return CONTAINED


add(
    ANSWERS,
    "cookies",
    "Set the cookie by which the server knows a browser, and cookies for all services.",
    _COOKIES,
    _cookies,
)
