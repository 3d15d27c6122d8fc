"""The files of stores inside: skills, blobs and packages, of this host or of an opener."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from skillyard.domain.errors import InvalidInput, SandboxFault
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Foreign, Sandbox
from skillyard.testing.sandbox_suite.check import SURVIVAL, Section, expect
from skillyard.testing.sandbox_suite.ground import (
    Ground,
    code,
    contents,
    directory,
    fresh,
    look,
    pieces,
    python,
    run,
    seal,
)

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
    # A digest of its own: a backend that keeps content by digest needs no source a second time.
    mount = Mount(Content(f"sha256:{fresh('digest')}", ground.scratch / fresh("nowhere")), "/skills/x")
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
        packages, platform = Content("suite", base), await _platform(ground)
        environment = EnvironmentRef("suite", packages, ("packaged",), digest=fresh("digest"), platform=platform)
        show = "import packaged\nprint(packaged.ANSWER)"
        async with ground.sandbox(environment=environment) as sandbox:
            for program in (python(show), code(f"def main(args):\n    {show.replace(chr(10), chr(10) + '    ')}")):
                result = await run(sandbox, program)
                expect(result.stdout == b"42\n", f"{type(program).__name__} imports its environment", result)
        other = await ground.run(python(show))
        failed = other.ending.outcome is Outcome.EXIT and b"ModuleNotFoundError" in other.stderr
        expect(failed, "a sandbox of another environment does not", other)


async def _platform(ground: Ground) -> Platform | None:
    """Returns what packages are built for."""
    backend = ground.backend
    return await backend.platform_of(SandboxSpec()) if isinstance(backend, Foreign) else None


content = Section("content")


def opened(data: bytes, *, tree: bool = False) -> Content:
    """Returns content that gives ``data``, in pieces that end anywhere."""
    return Content(hashlib.sha256(data).hexdigest(), open=lambda: pieces(data, 1000), tree=tree)


def tree(*entries: tuple[str, str | None, int]) -> bytes:
    """Returns a tar stream of (name, text, mode); a directory has no text."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, text, mode in entries:
            info = tarfile.TarInfo(name)
            info.mode, info.size = mode, len(text or "")
            info.type = tarfile.DIRTYPE if text is None else tarfile.REGTYPE
            made.addfile(info, io.BytesIO((text or "").encode()))
    return out.getvalue()


def skill_stream() -> bytes:
    """Returns a tree of the shape of a skill, of bytes that no other call gives."""
    files = (("SKILL.md", f"# {fresh('skill')}\n", 0o644), ("code", None, 0o755))
    return tree(*files, ("code/tool.sh", "#!/bin/sh\necho tool\n", 0o755))


@content.check()
async def opened_file_is_shown_under_all_its_names(ground: Ground) -> None:
    data = fresh("blob").encode() * 5000
    mount = Mount(opened(data), "/blobs/blob:opened", aliases=("/blobs/opened",))
    async with ground.sandbox(mounts=(mount,)) as sandbox:
        await _expect_shown(sandbox, data, mount.target, *mount.aliases)


@content.check()
async def opened_tree_is_shown(ground: Ground) -> None:
    async with ground.sandbox(mounts=(Mount(opened(skill_stream(), tree=True), "/skills/a.b"),)) as sandbox:
        source = LIST + "print(json.dumps([names('/skills/a.b'), open(HERE + '/skills/a.b/SKILL.md').read()]))"
        names, text = await look(sandbox, source)
    expect(names == ["SKILL.md", "code"], "a tree has the names of the opener's tar stream", names)
    expect(text.startswith("# skill-"), "and its files", text)


@content.check()
async def programs_of_a_tree_are_executed(ground: Ground) -> None:
    async with ground.sandbox(mounts=(Mount(opened(skill_stream(), tree=True), "/skills/a.b"),)) as sandbox:
        call = "import subprocess; subprocess.run([HERE + '/skills/a.b/code/tool.sh'])"
        result = await run(sandbox, python(call))
    expect(result.stdout == b"tool\n", "what is executable in the stream stays so", result)


@content.check("read_only_root")
async def it_cannot_be_changed(ground: Ground) -> None:
    mounts = (Mount(opened(skill_stream(), tree=True), "/skills/x"), Mount(opened(fresh("blob").encode()), "/blobs/b"))
    async with ground.sandbox(mounts=mounts) as sandbox:
        for where, file in (("/skills/x", "/skills/x/SKILL.md"), ("/blobs", "/blobs/b")):
            changed = await look(sandbox, TRY_TO_CHANGE, where, file)
            expect(changed == [], f"nothing below {where} can be changed", changed)


@content.check()
async def packages_can_be_imported(ground: Ground) -> None:
    """Also in a later sandbox, when the first that had them is gone. Those of another platform cannot be had."""
    name = fresh("packaged").replace("-", "_")
    packages = opened(tree((name, None, 0o755), (f"{name}/__init__.py", "ANSWER = 42\n", 0o644)), tree=True)
    environment = EnvironmentRef("suite", packages, digest=packages.digest, platform=await _platform(ground))
    for _ in range(2):
        result = await ground.run(python(f"import {name}\nprint({name}.ANSWER)"), environment=environment)
        expect(result.stdout == b"42\n", "programs import what the opener gave", result)
    if isinstance(ground.backend, Foreign):
        with suppress(InvalidInput):
            await ground.run(python(""), environment=replace(environment, platform=Platform("3.1", "x86_64", 17)))
            expect(False, "packages that were built for another platform are refused")


@content.check()
async def sandboxes_share_what_is_the_same(ground: Ground) -> None:
    """One stays when the other is destroyed."""
    data = fresh("blob").encode() * 100
    mounts = (Mount(opened(data), "/blobs/shared"),)
    async with ground.sandbox(mounts=mounts) as other:
        async with ground.sandbox(mounts=mounts) as sandbox:
            await _expect_shown(sandbox, data, "/blobs/shared")
        await _expect_shown(other, data, "/blobs/shared")


@content.check()
async def other_bytes_are_refused(ground: Ground) -> None:
    right = fresh("blob").encode() * 1000
    digest = hashlib.sha256(right).hexdigest()
    wrong = (right[:-1] + b"X", right[:-1], right + b"more", b"")
    await _refused(ground, [replace(opened(data), digest=digest) for data in wrong])
    async with ground.sandbox(mounts=(Mount(opened(right), "/blobs/b"),)) as sandbox:
        await _expect_shown(sandbox, right, "/blobs/b")


@content.check()
async def digests_of_other_forms_are_refused(ground: Ground) -> None:
    digests = ("", "..", "../escaped", f"sha256:{'0' * 64}", "A" * 64)
    await _refused(ground, [replace(opened(b"x"), digest=digest) for digest in digests])


@content.check()
async def hostile_trees_are_refused(ground: Ground) -> None:
    streams = {name: tree((name, "x", 0o644)) for name in ("../up", "a/../../up", "/absolute")}
    streams |= {"noise": b"no tar at all" * 100, "cut off": skill_stream()[:1500]}
    for kind, target in ((tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, "x"), (tarfile.FIFOTYPE, "")):
        info = tarfile.TarInfo("odd")
        info.type, info.linkname = kind, target
        streams[f"kind {kind!r}"] = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    await _refused(ground, [opened(stream, tree=True) for stream in streams.values()])


@content.check()
async def opener_that_fails_is_told(ground: Ground) -> None:
    data = fresh("blob").encode() * 100_000

    async def breaking() -> AsyncIterator[bytes]:
        yield data[:1_000_000]
        raise ConnectionAbortedError("the store went away")

    for shown in (Content(opened(data).digest, open=breaking), Content(opened(data).digest, open=breaking, tree=True)):
        await _refused(ground, [shown])
    async with ground.sandbox(mounts=(Mount(opened(data), "/blobs/b"),)) as sandbox:
        await _expect_shown(sandbox, data, "/blobs/b")


@content.check(SURVIVAL)
async def task_has_it_under_the_next_server(ground: Ground) -> None:
    assert ground.reopen is not None
    data, key = fresh("blob").encode() * 100, fresh("key")
    spec = await ground.spec(owner=Owner.TASK, mounts=(Mount(opened(data), "/blobs/b"),))
    first = await ground.reopen()
    handle = (await first.create(spec, key)).handle
    await first.close()
    second = await ground.reopen()
    try:
        await _expect_shown(await second.attach(handle), data, "/blobs/b")
    finally:
        await second.destroy(handle)
        await second.close()


async def _expect_shown(sandbox: Sandbox, data: bytes, *paths: str) -> None:
    digests = await look(sandbox, DIGESTS, *paths)
    wanted = [hashlib.sha256(data).hexdigest()] * len(paths)
    expect(digests == wanted, f"programs read the opener's bytes at {', '.join(paths)}", digests)


async def _refused(ground: Ground, shown: Sequence[Content]) -> None:
    """Raises Failed unless create refuses each, and leaves nothing."""
    for one in shown:
        key = fresh("key")
        try:
            sandbox = await ground.backend.create(await ground.spec(mounts=(Mount(one, "/skills/x"),)), key)
        except SandboxFault as refused:
            held = [held.key for held in await ground.backend.survey()]
            expect(key not in held, "a failed create leaves nothing behind", refused)
            continue
        await ground.backend.destroy(sandbox.handle)
        expect(False, "create raises SandboxFault for content that its opener does not give", one.digest)
