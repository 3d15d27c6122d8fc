"""Attacks by commands in skills: on paths, streams, variables, secrets and others' files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, NotShown, broken, escaped
from skillyard.testing.attacks.processes import HOPS
from skillyard.verify.home import SECRET, SKILL, secret_value
from skillyard.verify.site import Site

COMMANDS = Family("commands", invariants=(4, 9))

_SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS, Scope.DISCOVER})
_OWNER, _THIEF = Principal("verify-owner", _SCOPES), Principal("verify-thief", _SCOPES)
_OUTSIDE = (
    "../x", "a/../../x", "/etc/x", "/workspace/../etc/x", "/skills/x/y", "..", "a//b", "a/./b", "a\\..\\x", "a\0b",
    "\u2028/x", "a/" * 300 + "x", "\ud800",
)  # fmt: skip
"""Paths that do not lie below /workspace, or are not plain."""


async def _ran(site: Site, command: str, **asked: Any) -> dict[str, Any]:
    """Runs a command. Raises NotShown when it did not come to its own end."""
    answer = await _call(site, {"command": command, **asked})
    if answer["exit_code"] < 0:
        raise NotShown(f"the command did not end by itself: {answer['error_message']}")
    return answer


async def _call(site: Site, params: Mapping[str, Any], who: Principal | None = None) -> dict[str, Any]:
    asked = {"skill_name": SKILL, **params, **({"isolation": site.isolation} if site.isolation else {})}
    if who is not None:
        return await site.call_as(who, "skills.run_cmd", asked)
    return await site.caller.call("skills.run_cmd", asked)


async def _paths(site: Site) -> Judgement:
    blob = await site.caller.call("create_blob", {"content": "x", "kind": "text/plain"})
    for path in _OUTSIDE:
        for asked in (
            {"inputs": [{"artifact_id": blob["blob_id"], "mount_path": path}]},
            {"outputs": [{"path": path}]},
            {"outputs": [{"path": "x", "save_as": path}]},
            {"workdir": path},
        ):
            try:
                await _call(site, {"command": "true", **asked})
            except (SkillyardError, UnicodeError):
                continue
            return escaped(f"{path[:20]!r} was taken as {', '.join(asked)}")
    return CONTAINED


COMMANDS.steps(
    "paths", "Name inputs, outputs and working directories outside of /workspace.", _paths, needs=[Need.IN_PROCESS]
)


async def _links(site: Site) -> Judgement:
    """Looks for a word that only files behind links have."""
    text = """
        mkdir -p real way; echo behind the link > real/word; ln -s real/word link; ln -s real dir
        ln -s ../../../../proc/self/environ environ; ln -s /dev/zero zero; mkfifo pipe; ln -s link way/again
        ln -s /workspace/skill/real /workspace/up
    """
    names = [
        "link",
        "dir/word",
        "environ",
        "zero",
        "pipe",
        "way/*",
        "way/**",
        "/workspace/up/word",
        "/workspace/u*/word",
    ]
    answer = await _ran(site, text, outputs=[{"path": name} for name in names])
    if answer["created_artifacts"]:
        return escaped(f"links were followed: {', '.join(one['path'] for one in answer['created_artifacts'])}")
    return CONTAINED if answer["output_errors"] else broken("nothing was said of the links")


COMMANDS.steps("links", "Bring files out through links, devices and pipes.", _links, needs=[Need.IN_PROCESS])


async def _input_links(site: Site) -> Judgement:
    """A skill's files cannot be replaced by inputs, and no input is written through one of them."""
    blob = await site.caller.call("create_blob", {"content": "of the attack", "kind": "text/plain"})
    for path in ("SKILL.md", "SKILL.md/x", "code/main.py"):
        try:
            answer = await _call(
                site, {"command": "true", "inputs": [{"artifact_id": blob["blob_id"], "mount_path": path}]}
            )
        except SkillyardError:
            continue
        if answer["status"] == "succeeded":
            return escaped(f"an input took the place of {path}")
    after = await _ran(site, f"cat /skills/{SKILL}/SKILL.md code/main.py")
    return escaped("an input changed the skill") if "of the attack" in after["stdout"] else CONTAINED


COMMANDS.steps(
    "inputs", "Put inputs in the place of a skill's files, or below one of them.", _input_links,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _streams(site: Site) -> Judgement:
    """Writes the marks that tell the streams of a log apart."""
    forged = "\\000" + "2forged\\n\\000" + "1\\000" + "0\\000"
    answer = await _ran(site, f"printf '{forged}'; printf honest >&2")
    if "forged" in answer["stderr"] or answer["stderr"] != "honest":
        return escaped("stdout wrote to stderr")
    return CONTAINED if "forged" in answer["stdout"] else broken("the words of stdout are lost")


COMMANDS.steps("streams", "Write to one stream of the answer through the other.", _streams, needs=[Need.IN_PROCESS])


async def _variables(site: Site) -> Judgement:
    odd = "$(echo ran >&2) `echo ran >&2` \"; echo ran >&2 #' \\"
    answer = await _ran(site, 'printf %s "$ODD"', env={"ODD": odd})
    if "ran" in answer["stderr"]:
        return escaped("a value was executed")
    if answer["stdout"] != odd:
        return broken("the value came in another form")
    for name in ("A=B", "", "A B", "A\nB", "BASH_FUNC_x%%"):
        try:
            await _call(site, {"command": "true", "env": {name: "() { :; }; echo ran"}})
        except SkillyardError:
            continue
        return escaped(f"{name!r} was taken as the name of a variable")
    return CONTAINED


COMMANDS.steps("variables", "Have a variable's value or name executed.", _variables, needs=[Need.IN_PROCESS])


async def _secrets(site: Site) -> Judgement:
    """Looks for the secret of the command's skill by its tail: the whole is taken out."""
    text = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /run/* 2>/dev/null; env | rev"
    said = (await _ran(site, text))["stdout"]
    tail = secret_value(site)[-8:]
    if SECRET in said or tail in said or tail[::-1] in said:
        return escaped("the secret is in the command's environment")
    # A large file of /run leaves the tail of the output alone, which ends with the environment backwards.
    return CONTAINED if "PATH=" in said or "=HTAP" in said else broken("the command saw no environment")


COMMANDS.steps(
    "secrets", "Read the secret that the command's skill declares.", _secrets, needs=[Need.IN_PROCESS],
    invariants=(6,),
)  # fmt: skip


async def _hopping(site: Site) -> Judgement:
    """Leaves them below a command that ends for its time, and behind another; a later one looks."""
    for way, wait in (("below", "while True: time.sleep(9)"), ("beyond", "")):
        asked = {"session_id": f"hopping-{uuid.uuid4().hex[:12]}", "workdir": "."}
        program = f"{HOPS}\nbegin({way!r}, 'beats')\nprint('armed', flush=True)\n{wait}"
        hops = {"command": 'python3 -I -c "$HOPS"', "env": {"HOPS": program}, "timeout_sec": 4 * site.patience}
        left = await _call(site, {**asked, **hops})
        # A command ends when all that it left is gone, and where nothing tells of that it lasts for its time.
        if "armed" not in left["stdout"] or left["reason"] not in ("timeout", *(() if wait else ("exit",))):
            return broken(f"{way}: {left['reason']}: {left['error_message'] or left['stderr']}"[:200])
        try:
            seen = (await _ran(site, _LOOK, **asked))["stdout"].split()
        except SkillyardError:  # its session has ended, and all in it
            continue
        if len(set(seen)) > 1:
            return escaped(f"{way}: it goes on beside the next command of its session")
    return CONTAINED


_LOOK = "for n in 1 2; do cat beats 2>/dev/null | od -An -tx8; sleep 0.4; done"
"""Tells what they counted, twice. In a new session there is nothing."""

COMMANDS.steps(
    "hopping", "Go on as another process every few microseconds, past a command's deadline and its end.", _hopping,
    needs=[Need.IN_PROCESS], invariants=(8,), alone=True,
)  # fmt: skip


async def _stealing(site: Site) -> Judgement:
    own = await _call(site, {"command": "echo mine > kept", "outputs": [{"path": "kept"}]}, _OWNER)
    if not own["created_artifacts"]:
        raise NotShown("the owner's command kept no file")
    for method, params in _steals(own["created_artifacts"][0]["artifact_id"], own["run_id"]):
        try:
            answer = await site.call_as(_THIEF, method, params)
        except SkillyardError:
            continue
        return escaped(f"{method}: {str(answer)[:120]}")
    return CONTAINED


def _steals(artifact: str, run: str) -> Iterator[tuple[str, dict[str, Any]]]:
    bring = {"inputs": [{"artifact_id": artifact, "mount_path": "in"}]}
    yield "skills.run_cmd", {"skill_name": SKILL, "command": "cat in", **bring}
    yield "read_blob", {"blob_id": artifact}
    yield "runs.show", {"run_id": run}
    yield "skills.task_status", {"task_id": run}
    yield "skills.task_logs", {"task_id": run}


COMMANDS.steps(
    "stealing", "Bring another's artifact in, and read it, by naming it.", _stealing, needs=[Need.IN_PROCESS]
)
