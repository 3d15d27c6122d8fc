"""Finds hosts, files outside the bundle, and commands that are fetched and run."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import field

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted
from skillyard.values import dataclass

_URL = re.compile(r"\b(https?|ftp|ssh|wss?)://([^\s/<>\"'`()\[\]{}|\\^,;]{1,300}|\[[0-9a-fA-F:.]{2,45}\](?::\d{1,5})?)")
_FETCHERS = ("curl", "wget", "iwr", "invoke-webrequest", "iex")
_FETCH = r"\b(?:curl|wget|iwr|invoke-webrequest)\b[^\n|;]{0,200}\|[ \t]{0,20}(?:sudo[ \t]+)?(?:env[ \t]+)?"
_PIPED = re.compile(
    rf"{_FETCH}(?:/\S{{0,40}}/)?(?:(?:ba|z|da|k|fi)?sh\b|(?:python[0-9.]*|perl|ruby|node|php|iex)\b)"
    r"|\b(?:ba|z|da)?sh[ \t]+(?:-c[ \t]+)?[\"']?(?:<\(|\$\()[ \t]{0,20}(?:curl|wget)\b"
    r"|\biex\b[^\n]{0,80}\b(?:iwr|downloadstring)\b",
    re.IGNORECASE,
)
_TARGET = re.compile(r"\]\([ \t]{0,8}<?([^)\s>]{1,500})")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?!\\)")
_LOCAL_OUTSIDE = re.compile(r"(?:file:|/|~|[A-Za-z]:[\\/])")
_SHORTENERS = frozenset(
    {"bit.ly", "t.co", "goo.gl", "tinyurl.com", "is.gd", "ow.ly", "cutt.ly", "rb.gy", "t.ly", "shorturl.at"}
)
_PASTES = frozenset(
    {
        *("pastebin.com", "gist.github.com", "gist.githubusercontent.com", "paste.ee", "hastebin.com"),
        *("transfer.sh", "0x0.st", "webhook.site", "requestbin.com", "ngrok.io"),
    }
)


@dataclass(slots=True)
class Hosts:
    """Every host that a URL names, with its first place."""

    first: dict[str, tuple[str, int]] = field(default_factory=dict)

    def take(self, host: str, file: str, line: int) -> bool:
        """Returns whether it is the first time."""
        if host in self.first or len(self.first) >= 200:
            return False
        self.first[host] = (file, line)
        return True


def check_links(file: File, text: Text, hosts: Hosts, notes: Notes) -> None:
    for found in _URL.finditer(text):
        _url(file, text.line_of(found.start()), found[1].lower(), found[2], hosts, notes)
    lower = text.lower()
    if not any(word in lower for word in _FETCHERS):
        return
    for found in text.all(_PIPED):
        message = f"what is fetched is executed unread: {quoted(found[0])}"
        notes.danger(file.path, text.line_of(found.start()), "fetch-and-run", message)


def check_targets(file: File, text: Text, paths: frozenset[str], notes: Notes) -> None:
    """Finds links of Markdown to files outside the bundle, or to nothing."""
    for found in _TARGET.finditer(text):
        target = found[1].partition("#")[0].partition("?")[0]
        if not target or (_SCHEME.match(target) and not target.startswith("file:")):
            continue
        line = text.line_of(found.start())
        path = None if _LOCAL_OUTSIDE.match(target) else _joined(file.path, target)
        if path is None:
            notes.warn(file.path, line, "link-leaves", f"a link leaves the bundle: {quoted(target)}")
        elif path not in paths and not any(other.startswith(f"{path}/") for other in paths):
            notes.note(file.path, line, "link-nothing", f"a link to a file that is not there: {quoted(target)}")


def _url(file: File, line: int, scheme: str, authority: str, hosts: Hosts, notes: Notes) -> None:
    _, at, rest = authority.rpartition("@")
    host = rest.lower().rstrip(".:") if rest.startswith("[") else rest.partition(":")[0].lower().rstrip(".")
    if "." not in host and not host.startswith("["):
        return  # localhost, a placeholder
    if at and scheme != "ssh":
        notes.warn(file.path, line, "url-account", f"a URL with an account before its host {quoted(host)}")
    if not hosts.take(host, file.path, line):
        return
    odd = _odd(host)
    if odd:
        notes.warn(file.path, line, "odd-host", f"a URL leads to {quoted(host)}, {odd}")
    elif not _is_example(host):
        notes.note(file.path, line, "url", f"points to {quoted(host)}")


def _odd(host: str) -> str:
    registered = ".".join(host.split(".")[-2:])
    if host in _SHORTENERS or registered in _SHORTENERS:
        return "which hides where it leads"
    if host in _PASTES or registered in _PASTES:
        return "where anybody can put anything"
    if "xn--" in host or not host.isascii():
        return "whose letters may look like others"
    return "an address instead of a name" if _is_address(host) else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return not host.startswith(("127.", "0.0.0.0", "[::1"))  # noqa: S104 - compared, not bound


def _is_example(host: str) -> bool:
    """RFC 2606, RFC 6761."""
    return host.endswith((".example", ".invalid", ".test", ".localhost", "example.com", "example.org", "example.net"))


def _joined(base: str, target: str) -> str | None:
    """Returns the path in the bundle that a relative link means; None when it leaves the bundle."""
    parts = base.split("/")[:-1]
    for part in target.replace("%20", " ").split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
