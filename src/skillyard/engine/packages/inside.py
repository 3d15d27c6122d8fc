"""The program of a build's sandbox: ``python3 -I -S -c`` gets this file's text, and one JSON object on standard input.

``resolve`` writes a requirements file with digests to standard output, ``install`` a tar archive of the installed
packages, ``fetch`` one of wheels. uv's own words go to standard error. Standard library only; it imports nothing of
ours, and readers of its output trust nothing of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where systems keep the certificates to trust; without any, uv trusts those that it brings."""
ROOT = os.environ.get("SKILLYARD_ROOT", "")
"""Where the port's paths lie in a sandbox that has no root directory of its own."""
HOME = f"{ROOT}/workspace"
UV, WHEELS = f"{ROOT}/skills/uv", f"{ROOT}/blobs/wheels"
INSTALL = ("pip", "install", "--require-hashes", "--no-deps", "--target")
LEFT_OUT = re.compile(rb"Skipping unsafe file name: (.{1,200})")
"""uv's warning about an absolute path, or one that goes up (uv-extract)."""
_PIECE = 1 << 20


def main() -> None:
    asked = json.load(sys.stdin.buffer)
    os.chdir(HOME)
    {"resolve": resolve, "install": install, "fetch": fetch}[asked["step"]](asked)
    sys.stdout.flush()


def resolve(asked: dict[str, Any]) -> None:
    """Those of ``asked["held"]`` that are needed get just this version."""
    write("wanted.txt", asked["requirements"])
    held = []
    if asked["held"]:
        write("held.txt", asked["held"])
        held = ["-c", "held.txt"]
    uv(asked, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "-o", "lock.txt",
       *held, "wanted.txt")  # fmt: skip
    with open("lock.txt", "rb") as file:
        copy(file, sys.stdout.buffer)


def install(asked: dict[str, Any]) -> None:
    write("lock.txt", [asked["lock"]])
    os.mkdir("packages")
    compiled = [] if asked["other"] else ["--compile-bytecode"]  # it would be that of this interpreter
    if outside := uv(asked, *INSTALL, "packages", *compiled, "-r", "lock.txt"):
        sys.exit(f"error: {culprit(asked)} holds {outside}, outside of its own tree")
    send("packages", sorted(files("packages")))


def culprit(asked: dict[str, Any]) -> str:
    """Returns the wheel whose entry uv left out. uv does not name it, so each wheel is read."""
    for pin in re.split(r"\n(?=\w)", asked["lock"]):
        write("one.txt", [pin])
        if uv(asked, *INSTALL, "alone", "--cache-dir", "alone.cache", "-r", "one.txt"):
            return f"the wheel of '{pin.partition('=')[0]}'"
    return "a wheel"


def fetch(asked: dict[str, Any]) -> None:
    """The wheels of ``asked["wheels"]``: for each package its version, tags and digests. The files are found in the
    pages of the index by digest, and are those whose name has these tags (PEP 427)."""
    os.mkdir("wheels")
    for name, wanted in asked["wheels"].items():
        print(f"Fetching {name} {wanted['version']}", file=sys.stderr, flush=True)
        url, filename = found(asked, name, wanted)
        with opened(asked, url) as answer, open(f"wheels/{filename}", "wb") as file:
            copy(answer, file)
    send("wheels", sorted(files("wheels")))


def uv(asked: dict[str, Any], *words: str) -> str:
    """Returns the first entry that uv left out for lying outside of its package's tree, if any."""
    where = ["--no-index"] if asked["offline"] else ["--default-index", asked["index"]]
    if asked["wheels_shown"]:
        where += ["--find-links", WHEELS]
    kinds = ["--only-binary", ":all:"]
    for name in asked["source"]:
        kinds += ["--no-binary", name]
    if asked["other"]:
        version, platform = asked["other"]
        kinds += ["--python-version", version, "--python-platform", platform]
    given = {
        "HOME": HOME,
        "UV_CACHE_DIR": f"{HOME}/.cache",
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_HTTP_TIMEOUT": "30",
        "UV_HTTP_RETRIES": "2",
        "UV_CONCURRENT_DOWNLOADS": "4",
        "PYC_INVALIDATION_MODE": "UNCHECKED_HASH",
        "NO_COLOR": "1",
        "RUST_LOG": "uv_extract=warn",
    }
    trusted = certificates()
    if trusted is not None:
        given["SSL_CERT_FILE"] = trusted
    env = {**given, **{k: v for k, v in os.environ.items() if k not in ("HOME", "SSL_CERT_DIR")}}
    command = [UV, *words[:2], "--python", sys.executable, *where, *kinds, *words[2:]]
    outside = ""
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if not outside and (found := LEFT_OUT.search(line)):
                outside = repr(found[1].decode("utf-8", "replace"))
    if process.returncode:
        sys.exit(process.returncode if process.returncode > 0 else 1)
    return outside


def certificates() -> str | None:
    return next((path for path in BUNDLES if os.path.exists(path)), None)


def write(path: str, lines: list[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def files(top: str) -> Iterator[str]:
    """Paths below ``top`` of its regular files, without what uv keeps for itself."""
    for directory, _, names in os.walk(top):
        inner = directory[len(top) + 1 :]
        for name in names:
            path = os.path.join(inner, name)
            if path != ".lock" and os.path.isfile(os.path.join(top, path)):
                yield path


def send(top: str, paths: list[str]) -> None:
    """As a tar archive in which nothing tells of times and users."""
    import tarfile

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as archive:
        for path in paths:
            with open(os.path.join(top, path), "rb") as file:
                state = os.fstat(file.fileno())
                member = tarfile.TarInfo(path)
                member.size, member.mode = state.st_size, 0o755 if state.st_mode & 0o100 else 0o644
                archive.addfile(member, file)


def found(asked: dict[str, Any], name: str, wanted: dict[str, Any]) -> tuple[str, str]:
    from urllib.parse import unquote, urljoin, urlsplit

    page = f"{asked['index']}/{name}/"
    fitting = []
    for url, digest in listed(asked, page):
        filename = unquote(urlsplit(url).path.rpartition("/")[2])
        if digest in wanted["hashes"] and filename.endswith(".whl"):
            fitting.append((urljoin(page, url), filename))
    exact = [pair for pair in fitting if expanded(pair[1]) == set(wanted["tags"])]
    chosen = exact or [pair for pair in fitting if expanded(pair[1]) & set(wanted["tags"])]
    if not chosen:
        sys.exit(f"the index has no wheel of {name} {wanted['version']} with the digests and tags that are wanted")
    return chosen[0]


def listed(asked: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
    """Returns addresses of files and their SHA-256.

    Reads either form of a project's page (PEP 503, PEP 691).
    """
    import re
    from html import unescape

    with opened(asked, page, "application/vnd.pypi.simple.v1+json, text/html;q=0.5") as answer:
        kind, text = answer.headers.get_content_type(), answer.read(64 << 20)
    if kind.endswith("json"):
        for file in json.loads(text)["files"]:
            yield file["url"], file["hashes"].get("sha256", "")
        return
    for href in re.findall(rb'href\s*=\s*"([^"]*)"', text):
        url, _, fragment = unescape(href.decode()).partition("#")
        yield url, fragment.removeprefix("sha256=")


def opened(asked: dict[str, Any], url: str, accept: str = "*/*") -> Any:
    """Returns the answer to a request.

    The request has the credentials of the index's address where they are for this host.
    """
    import base64
    import ssl
    import urllib.request
    from urllib.parse import unquote, urlsplit

    index, there = urlsplit(asked["index"]), urlsplit(url)
    plain = there._replace(netloc=there.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(plain, headers={"accept": accept})
    if index.username is not None and there.hostname == index.hostname:
        said = f"{unquote(index.username)}:{unquote(index.password or '')}".encode()
        request.add_header("authorization", "Basic " + base64.b64encode(said).decode())
    trusted = os.environ.get("SSL_CERT_FILE") or certificates()
    return urllib.request.urlopen(request, timeout=60, context=ssl.create_default_context(cafile=trusted))


def expanded(filename: str) -> set[str]:
    """Returns the tags of a wheel (PEP 425).

    ``x-1.0-py2.py3-none-any.whl`` has the tags ``py2-none-any`` and ``py3-none-any``.
    """
    interpreters, abis, platforms = filename.removesuffix(".whl").split("-")[-3:]
    return {
        f"{interpreter}-{abi}-{platform}"
        for interpreter in interpreters.split(".")
        for abi in abis.split(".")
        for platform in platforms.split(".")
    }


def copy(source: Any, target: BinaryIO) -> None:
    while piece := source.read(_PIECE):
        target.write(piece)


if __name__ == "__main__":
    main()
