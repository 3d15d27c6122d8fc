"""The files of the host inside: skills, blobs, packages."""

from __future__ import annotations

import hashlib
from pathlib import Path

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount
from skillyard.domain.work.record import Outcome
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, code, contents, fresh, look, python, run
from skillyard.testing.sandbox_suite.observe import directory, seal

mounts = Section("mounts")

TRY_TO_CHANGE = """
import json, os, sys
changed = []
def attempt(name, change):
    try: change()
    except OSError: return
    changed.append(name)
directory, file = (HERE + path for path in sys.argv[1:])
attempt('create', lambda: open(directory + '/new', 'w'))
attempt('append', lambda: open(file, 'a'))
attempt('open to write', lambda: os.open(file, os.O_RDWR))
attempt('truncate', lambda: os.truncate(file, 0))
attempt('remove', lambda: os.unlink(file))
attempt('rename', lambda: os.rename(file, file + '2'))
attempt('mode', lambda: os.chmod(file, 0o777))
attempt('mode of the directory', lambda: os.chmod(directory, 0o777))
attempt('times', lambda: os.utime(file))
attempt('directory', lambda: os.mkdir(directory + '/made'))
attempt('link', lambda: os.symlink('/etc', directory + '/link'))
attempt('beside', lambda: open(os.path.dirname(directory) + '/beside', 'w'))
print(json.dumps(changed))
"""

LIST = """
import json, os
def names(directory): return sorted(os.listdir(HERE + directory)) if os.path.isdir(HERE + directory) else []
"""
DIGESTS = """
import hashlib, json, sys
print(json.dumps([hashlib.sha256(open(HERE + name, 'rb').read()).hexdigest() for name in sys.argv[1:]]))
"""


def skill(at: Path) -> Path:
    """A directory as the skill store gives it."""
    (at / "code").mkdir(parents=True)
    (at / "SKILL.md").write_text("# a skill\n", encoding="utf-8")
    (at / "code" / "main.py").write_text("def main(args):\n    return {'mounted': args}\n", encoding="utf-8")
    tool = at / "code" / "tool.sh"
    tool.write_text("#!/bin/sh\necho tool\n", encoding="utf-8")
    seal(at)
    tool.chmod(0o555)
    return at


@mounts.check()
async def directory_is_shown(ground: Ground) -> None:
    with directory(ground.scratch / fresh("mount")) as base:
        mount = Mount(Content("sha256:0", skill(base / "skill")), "/skills/a.b.c")
        async with ground.sandbox(mounts=(mount,)) as sandbox:
            source = LIST + "print(json.dumps([names('/skills'), open(HERE + '/skills/a.b.c/SKILL.md').read()]))"
            seen = await look(sandbox, source)
            expect(seen == [["a.b.c"], "# a skill\n"], "a directory is at its target, alone", seen)
            result = await run(
                sandbox, python("import subprocess; subprocess.run([HERE + '/skills/a.b.c/code/tool.sh'])")
            )
            expect(result.stdout == b"tool\n", "what is executable stays so", result)
            expect(await contents(sandbox, "/skills/a.b.c/SKILL.md") == b"# a skill\n", "read() reaches it too")


@mounts.check()
async def file_is_shown_under_all_its_names(ground: Ground) -> None:
    data = bytes(range(256)) * 5000
    with directory(ground.scratch / fresh("mount")) as base:
        (base / "blob").write_bytes(data)
        seal(base / "blob")
        mount = Mount(Content("sha256:1", base / "blob"), "/blobs/blob:abc-1", aliases=("/blobs/abc-1", "/blobs/other"))
        async with ground.sandbox(mounts=(mount,)) as sandbox:
            digests = await look(sandbox, DIGESTS, mount.target, *mount.aliases)
    wanted = [hashlib.sha256(data).hexdigest()] * 3
    expect(digests == wanted, "a file is the same under its target and its aliases", digests)


@mounts.check("read_only_root")
async def mounts_cannot_be_changed(ground: Ground) -> None:
    with directory(ground.scratch / fresh("mount")) as base:
        source = skill(base / "skill")
        (base / "blob").write_bytes(b"blob")
        (base / "blob").chmod(0o444)
        shown, blob = Content("sha256:0", source), Content("sha256:1", base / "blob")
        pair = (Mount(shown, "/skills/x"), Mount(blob, "/blobs/blob:b", aliases=("/blobs/b",)))
        async with ground.sandbox(mounts=pair) as sandbox:
            for where, file in (("/skills/x", "/skills/x/SKILL.md"), ("/blobs", "/blobs/b")):
                changed = await look(sandbox, TRY_TO_CHANGE, where, file)
                expect(changed == [], f"nothing below {where} can be changed", changed)
        expect((source / "SKILL.md").read_bytes() == b"# a skill\n", "the source is as it was")
        expect((base / "blob").read_bytes() == b"blob", "the source is as it was")


@mounts.check()
async def several_lie_side_by_side(ground: Ground) -> None:
    with directory(ground.scratch / fresh("mount")) as base:
        three = [
            Mount(Content(f"sha256:{name}", skill(base / name)), f"/skills/{name}") for name in ("a.b", "a.b.c", "z")
        ]
        source = "import json, os; print(json.dumps(sorted(os.listdir(HERE + '/skills'))))"
        names = await ground.look(source, mounts=tuple(three))
    expect(names == ["a.b", "a.b.c", "z"], "every mount is there, and no other", names)


@mounts.check()
async def next_sandbox_sees_none_of_them(ground: Ground) -> None:
    with directory(ground.scratch / fresh("mount")) as base:
        (base / "blob").write_bytes(b"secret")
        (base / "blob").chmod(0o444)
        given = (
            Mount(Content("sha256:0", skill(base / "skill")), "/skills/x"),
            Mount(Content("sha256:1", base / "blob"), "/blobs/blob:b", aliases=("/blobs/b",)),
        )
        async with ground.sandbox(mounts=given) as first, ground.sandbox() as beside:
            source = LIST + "print(json.dumps(names('/skills') + names('/blobs')))"
            expect(len(await look(first, source)) == 3, "the sandbox that asked has them")
            expect(await look(beside, source) == [], "one beside it has none")
            expect(await ground.look(source) == [], "and a new one has none")


@mounts.check()
async def missing_source_is_refused(ground: Ground) -> None:
    mount = Mount(Content("sha256:0", ground.scratch / fresh("nowhere")), "/skills/x")
    before = len(await ground.backend.survey())
    try:
        sandbox = await ground.backend.create(await ground.spec(mounts=(mount,)), fresh("key"))
    except SandboxFault:
        expect(len(await ground.backend.survey()) == before, "a failed create leaves nothing behind")
        return
    await ground.backend.destroy(sandbox.handle)
    expect(False, "create raises SandboxFault when a mount's source is missing")


@mounts.check()
async def packages_of_the_environment_can_be_imported(ground: Ground) -> None:
    with directory(ground.scratch / fresh("packages")) as base:
        (base / "packaged").mkdir()
        (base / "packaged" / "__init__.py").write_text("ANSWER = 42\n", encoding="utf-8")
        seal(base)
        environment = EnvironmentRef("suite", Content("suite", base), ("packaged",), digest=fresh("digest"))
        show = "import packaged\nprint(packaged.ANSWER)"
        async with ground.sandbox(environment=environment) as sandbox:
            for program in (python(show), code(f"def main(args):\n    {show.replace(chr(10), chr(10) + '    ')}")):
                result = await run(sandbox, program)
                expect(result.stdout == b"42\n", f"{type(program).__name__} imports its environment", result)
        other = await ground.run(python(show))
        failed = other.ending.outcome is Outcome.EXIT and b"ModuleNotFoundError" in other.stderr
        expect(failed, "a sandbox of another environment does not", other)
