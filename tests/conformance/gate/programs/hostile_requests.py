"""Requests for another host than the one that was allowed, openly or hidden; programs that say each."""

from __future__ import annotations

PLAIN = r"""
    port = args["port"]
    mine, other = f"api.yard.test:{port}", f"other.yard.test:{port}"
    two = lambda first, second: get(first).replace("connection: close\r\n", "") + get(second)
    post = lambda head, body: f"POST /echo HTTP/1.1\r\nhost: {mine}\r\n{head}\r\n\r\n{body}"
    hidden = get(other)
    texts = {
        "good": get(mine), "bare name": get("api.yard.test"), "upper case": get(mine.upper()),
        "another host": get(other), "no host": "GET /hello HTTP/1.1\r\nconnection: close\r\n\r\n",
        "http/1.0 without host": "GET /hello HTTP/1.0\r\n\r\n", "empty host": get(""),
        "two hosts": get(mine, more=f"host: {other}\r\n"), "two hosts, mine last": get(other, more=f"host: {mine}\r\n"),
        "host of another port": get(f"api.yard.test:{port + 1}"), "host with a user": get(f"x@{mine}"),
        "host and comma": get(f"{mine}, {other}"), "host and space": get(f"{mine} {other}"),
        "folded host": get(mine + "\r\n " + other), "tab before colon": get(mine).replace("host:", "host\t:"),
        "space before colon": get(mine, more=f"host : {other}\r\n"),
        "absolute": get(mine, f"http://{other}/hello"), "absolute, https": get(mine, f"https://{mine}/hello"),
        "absolute with user": get(mine, f"http://api.yard.test@{other}/hello"),
        "absolute with nul": get(mine, f"http://{mine}\0.{other}/hello"),
        "authority": f"CONNECT {other} HTTP/1.1\r\nhost: {mine}\r\n\r\n",
        "authority of mine": f"CONNECT {mine} HTTP/1.1\r\nhost: {mine}\r\n\r\n",
        "second of another": two(mine, other),
        "length and chunked": post(f"content-length: {len(hidden) + 5}\r\ntransfer-encoding: chunked",
                                   "0\r\n\r\n" + hidden),
        "chunked and length": post(f"transfer-encoding: chunked\r\ncontent-length: 6", "0\r\n\r\n" + hidden),
        "two lengths": post(f"content-length: 0\r\ncontent-length: {len(hidden)}", hidden),
        "list of lengths": post(f"content-length: 0, {len(hidden)}", hidden),
        "odd length": post("content-length: +0", hidden), "hexadecimal length": post("content-length: 0x0", hidden),
        "negative length": post("content-length: -1", hidden), "spaced length": post("content-length : 0", hidden),
        "odd coding": post("transfer-encoding: xchunked", "0\r\n\r\n" + hidden),
        "identity, chunked": post("transfer-encoding: identity, chunked", "0\r\n\r\n" + hidden),
        "chunked twice": post("transfer-encoding: chunked\r\ntransfer-encoding: chunked", "0\r\n\r\n" + hidden),
        "folded coding": post("transfer-encoding:\r\n chunked", "0\r\n\r\n" + hidden),
        "vertical tab coding": post("transfer-encoding: \x0bchunked", "0\r\n\r\n" + hidden),
        "odd chunk": post("transfer-encoding: chunked", "0;\n" + hidden + "\r\n\r\n"),
        "chunk size of minus": post("transfer-encoding: chunked", "-1\r\n" + hidden),
        "chunk size too big": post("transfer-encoding: chunked", "10000000000000000\r\n" + hidden),
        "trailer": post("transfer-encoding: chunked", f"0\r\nhost: {other}\r\n\r\n" + hidden),
        "bare line feeds": get(mine).replace("\r\n", "\n") + hidden,
        "bare line feed in a field": get(mine, more=f"x: y\nhost: {other}\r\n"),
        "bare carriage return": get(mine, more=f"x: y\rhost: {other}\r\n"),
        "nul in a field": get(mine, more="x: \0\r\n"), "no colon": get(mine, more="x\r\n"),
        "space in a name": get(mine, more=f"x y: {other}\r\n"),
        "get with a body": get(mine, more=f"content-length: {len(hidden)}\r\n".replace(str(len(hidden)), "0")) + hidden,
        "expect": post(f"content-length: {len(hidden)}\r\nexpect: 100-continue", hidden),
        "h2c": get(mine, more="upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n").replace(
            "close", "Upgrade, HTTP2-Settings"),
        "prior knowledge": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\0\0\0\4\0\0\0\0\0",
        "http/0.9": "GET /hello\r\n", "http/2 in the line": get(mine).replace("HTTP/1.1", "HTTP/2.0"),
        "upgrade to tls": get(mine, more="upgrade: TLS/1.0\r\n").replace("close", "Upgrade"),
        "lower case method": get(other).replace("GET", "get"), "empty line first": "\r\n\r\n" + get(other),
        "tls": "\x16\3\1\0\4\1\0\0\0",
    }
    found = {}
    for kind, text in texts.items():
        data = text.encode("latin-1")
        address = ("api.yard.test", port)
        ways = {"direct": lambda: socket.create_connection(address, BOUND), "connect": lambda: tunnel(mine)}
        for way, opened in ways.items():
            def say():
                with opened() as sock:
                    sock.sendall(data)
                    sock.settimeout(1)
                    return all_of(sock, 0.5)
            found[f"{kind} / {way}"] = told(say)
    return found
"""

PROXIED = r"""
    port = args["port"]
    mine, other = f"api.yard.test:{port}", f"other.yard.test:{port}"
    def line(text):
        with socket.create_connection(PROXY, BOUND) as sock:
            sock.sendall(text.encode("latin-1"))
            sock.settimeout(1)
            return all_of(sock, 0.5)
    get_ = lambda target, host: f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    found = {kind: told(line, text) for kind, text in {
        "good": get_(f"http://{mine}/hello", mine),
        "another": get_(f"http://{other}/hello", other),
        "host of another": get_(f"http://{mine}/hello", other),
        "host of mine": get_(f"http://{other}/hello", mine),
        "origin form": get_("/hello", mine), "origin form, host of the proxy": get_("/hello", "127.0.0.1:3128"),
        "https by get": get_(f"https://{mine}/hello", mine), "ftp": get_(f"ftp://{mine}/hello", mine),
        "user": get_(f"http://{mine}@{other}/hello", mine), "user of mine": get_(f"http://u:p@{mine}/hello", mine),
        "fragment": get_(f"http://{mine}#@{other}/hello", mine),
        "backslash": get_(f"http://{mine}\\@{other}/hello", mine),
        "second of another": get_(f"http://{mine}/hello", mine).replace("connection: close\r\n", "")
                             + get_(f"http://{other}/hello", other),
        "connect": f"CONNECT {other} HTTP/1.1\r\nhost: {other}\r\n\r\n",
        "connect, host of mine": f"CONNECT {other} HTTP/1.1\r\nhost: {mine}\r\n\r\n",
        "connect without a port": "CONNECT other.yard.test HTTP/1.1\r\n\r\n",
        "connect as a url": f"CONNECT http://{other}/ HTTP/1.1\r\n\r\n",
        "connect with a body": f"CONNECT {mine} HTTP/1.1\r\nhost: {mine}\r\ncontent-length: 5\r\n\r\nGET /"
                               + get_(f"http://{other}/hello", other),
        "connect, then another": f"CONNECT {mine} HTTP/1.1\r\nhost: {mine}\r\n\r\n"
                                 + get_(f"http://{other}/hello", other),
        "connect twice": f"CONNECT {mine} HTTP/1.1\r\nhost: {mine}\r\n\r\n"
                         f"CONNECT {other} HTTP/1.1\r\nhost: {other}\r\n\r\n",
        "port zero": "CONNECT api.yard.test:0 HTTP/1.1\r\n\r\n",
        "port above": f"CONNECT api.yard.test:{port + 65536} HTTP/1.1\r\n\r\n",
        "port with a sign": f"CONNECT api.yard.test:+{port} HTTP/1.1\r\n\r\n",
        "negative port": "CONNECT api.yard.test:-1 HTTP/1.1\r\n\r\n",
        "port in another script": "CONNECT api.yard.test:\xb2\xb3 HTTP/1.1\r\n\r\n",
        "proxy to itself": "CONNECT 127.0.0.1:3128 HTTP/1.1\r\n\r\n",
        "proxy to itself by name": "CONNECT localhost:3128 HTTP/1.1\r\n\r\n",
        "proxy to itself by version 6": "CONNECT [::1]:3128 HTTP/1.1\r\n\r\n",
        "get from itself": get_("http://127.0.0.1:3128/", "127.0.0.1:3128"),
        "trace": f"TRACE http://{mine}/echo HTTP/1.1\r\nhost: {mine}\r\nmax-forwards: 0\r\n\r\n",
        "options of all": "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    }.items()}
    found["socks 4"] = told(line, "\x04\x01\x00\x50\x0a\x00\x00\x05x\0")
    found["socks 4a"] = told(line, "\x04\x01\x00\x50\x00\x00\x00\x01x\0other.yard.test\0")
    for command in (2, 3):
        found[f"socks command {command}"] = told(line, "\x05\x01\x00" + f"\x05{chr(command)}\x00\x01\0\0\0\0\0\0")
    found["socks to the proxy"] = told(socks, 1, "127.0.0.1", 3128)
    found["socks by a password"] = told(line, "\x05\x01\x02\x01\x01x\x01x")
    found["socks within the tunnel"] = told(line, f"CONNECT {mine} HTTP/1.1\r\n\r\n\x05\x01\x00")
    return found
"""
