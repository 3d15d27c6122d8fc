"""A runtime for the battery alone, in a directory that is thrown away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from skillyard.config.packages import EnvironmentSettings
from skillyard.config.profiles import ProfileLimits, ProfileSettings
from skillyard.config.services import ServiceSettings
from skillyard.domain.errors import SessionNotFound
from skillyard.runtime import Runtime
from skillyard.stores.disk import remove_tree
from skillyard.verify.front import ANSWER_S, Front, front
from skillyard.verify.outside import Outside, opened, outside

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.ports.sandbox import Backend
    from skillyard.verify.site import Site

SKILL, SECRET = "verify.keeper", "VERIFY_SECRET"
CALLER = "verify.caller"
"""May reach one host, and runs what it is told."""
NARROW = "verify-narrow"
"""A profile that allows little."""
WARM, WARM_MODULES = "verify-warm", ("multiprocessing.process", "secrets", "ssl", "tempfile", "uuid")
"""An environment whose interpreter has imported these ahead."""

_MANIFEST = f"""\
name = "{SKILL}"
version = "1.0.0"
description = "Keeps a secret, for skillyard verify"
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[permissions]
secrets = ["{SECRET}"]
"""
_MAIN = f"""\
import base64
import os
import sys


def main(args):
    value = os.environ.get("{SECRET}", "")
    if args["how"] == "leave":
        for place in (os.environ.get("TMPDIR", "/tmp"), os.getcwd()):
            with open(place + "/secret", "w") as file:
                file.write(value)
        return {{"had": bool(value)}}
    forms = [value, *(base64.b64encode(b"x" * n + value.encode()).decode() for n in range(3))]
    for form in forms:
        print(form)
        print("before " + form + " after", file=sys.stderr)
    for form in forms:
        for character in form:
            sys.stdout.write(character)
            sys.stdout.flush()
        print()
    if args["how"] == "raise":
        raise ValueError(" ".join(forms))
    if args["how"] == "exit":
        sys.exit(" ".join(forms))
    return {{"had": bool(value), "forms": forms, "summary": value, value: 1, "deep": [[{{"x": value}}]]}}
"""

_CALLER = f"""\
name = "{CALLER}"
version = "1.0.0"
description = "Reaches one host, for skillyard verify"
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[permissions]
network = RULES
"""
_CALLS = """\
def main(args):
    names = {}
    exec(compile(args["code"], "program", "exec"), names)
    return names["main"](args["args"])
"""


@contextmanager
def workplace() -> Iterator[Path]:
    """Gives a directory, and removes it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="skillyard-verify-")).resolve()
    try:
        yield place
    finally:
        remove_tree(place)  # a data directory holds read-only directories


@asynccontextmanager
async def own_runtime(settings: Settings, place: Path, backend: Backend | None = None) -> AsyncIterator[Runtime]:
    """Gives a runtime for the battery; ``backend`` replaces those of the settings.

    It has a skill that declares a secret, that secret, a skill that may reach one host of an outside made for it, and
    an HTTP front on loopback.
    """
    _write_skill(place / "skills" / SKILL, _MANIFEST, _MAIN)
    own = settings.model_copy(
        update={
            "data_dir": place / "data",
            "skills_dirs": [place / "skills"],
            "network": opened(settings.network),
            "server": settings.server.model_copy(update={"host": "127.0.0.1"}),
            "services": _reached(settings.services),
            "profiles": {**settings.profiles, NARROW: _narrow()},
            "environments": {**settings.environments, WARM: EnvironmentSettings(preload=WARM_MODULES)},
        }
    )
    async with outside() as there:
        manifest = _CALLER.replace("RULES", json.dumps(there.rules()))
        _write_skill(place / "skills" / CALLER, manifest, _CALLS)
        async with Runtime(settings=own, backend=backend) as runtime:
            value = f"verify-secret-0{token_hex(12)}"
            await runtime.secrets.set(SECRET, value)
            async with front(runtime) as face:
                _homes[place / "data"] = _Home(value, there, face)
                try:
                    yield runtime
                finally:
                    del _homes[place / "data"]
                    await _end_sessions(runtime)


async def _end_sessions(runtime: Runtime) -> None:
    """Ends the sessions that attacks left.

    A session outlives its server, and nobody comes back to this directory.
    """
    for session in (await runtime.call("skills.sessions"))["sessions"]:
        with suppress(SessionNotFound):  # its time was over
            await runtime.call("skills.end_session", {"session_id": session["session_id"]})


def _reached(services: ServiceSettings) -> ServiceSettings:
    """Returns the settings for services that are reached on loopback, without a proxy."""
    own = {"domain": services.domain or "localhost", "https": False, "public_port": 0, "answer_s": ANSWER_S}
    return services.model_copy(update=own)


def _narrow() -> ProfileSettings:
    limits = ProfileLimits(timeout_ms=30_000, memory_mb=128)
    tools = ("run_code", "skills.run_cmd")
    return ProfileSettings(allowed_tools=tools, skills=(SKILL,), limits=limits, network=())


def secret_value(site: Site) -> str:
    """Returns the secret of the skill that the battery's runtime has."""
    return _home(site).secret


def outside_of(site: Site) -> Outside:
    """Returns the outside of which the caller's skill may reach a part."""
    return _home(site).outside


def front_of(site: Site) -> Front:
    """Returns the HTTP front of the battery's runtime."""
    return _home(site).front


@dataclass(frozen=True, slots=True)
class _Home:
    """The parts of a battery's runtime."""

    secret: str
    outside: Outside
    front: Front


_homes: dict[Path, _Home] = {}


def _home(site: Site) -> _Home:
    assert site.runtime is not None
    return _homes[Path(site.runtime.settings.data_dir)]


def _write_skill(directory: Path, manifest: str, main: str) -> None:
    (directory / "code").mkdir(parents=True)
    (directory / "skill.toml").write_text(manifest, encoding="utf-8")
    (directory / "SKILL.md").write_text(
        "---\nname: helper\ndescription: Helps to verify\n---\nIt helps.\n", encoding="utf-8"
    )
    (directory / "code" / "main.py").write_text(main, encoding="utf-8")
