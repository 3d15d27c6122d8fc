"""Git's smart HTTP, by its own ``git http-backend`` as a CGI program (gitprotocol-http(5))."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.conformance.gate.programs.web import Answer, Asked, Route

PREFIX = "/git/"
_BOUND_S = 30.0


def git_repository(directory: Path) -> Path:
    """A bare repository ``project.git`` with one commit that holds ``README``, below ``directory``."""
    work = directory / "work"
    work.mkdir(parents=True)
    (work / "README").write_text("from git\n")
    for words in (
        ("init", "-q", "-b", "main"), ("add", "README"), ("commit", "-q", "-m", "one"),
        ("clone", "-q", "--bare", ".", str(directory / "project.git")),
    ):  # fmt: skip
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t.yard.test", *words]
        subprocess.run(
            command, cwd=work, env=_environment(directory), check=True, capture_output=True, timeout=_BOUND_S
        )
    return directory / "project.git"


def git_route(directory: Path) -> Route:
    """Serves what lies below ``directory`` at :data:`PREFIX`."""

    def answer(asked: Asked) -> Answer:
        url = urlsplit(asked.target)
        env = {
            **_environment(directory),
            "GIT_PROJECT_ROOT": str(directory),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": "/" + url.path.removeprefix(PREFIX),
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": asked.method,
            "CONTENT_TYPE": asked.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(asked.body)),
            "HTTP_CONTENT_ENCODING": asked.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": asked.headers.get("git-protocol", ""),
        }
        command = ["git", "http-backend"]
        done = subprocess.run(command, input=asked.body, env=env, capture_output=True, timeout=_BOUND_S)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
        status = int(fields.pop("Status", "200").split()[0])
        return status, fields, content

    return answer


def _environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
