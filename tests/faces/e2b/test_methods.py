"""Every public method of E2B's SDKs stands in the table of docs/e2b-methods.md, and does what it says there."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import e2b
import pytest

from tests.faces.e2b import sdk_names
from tests.faces.e2b.conftest import Yard
from tests.faces.e2b.test_javascript import MODULES, ran

TABLE = Path(__file__).parents[3] / "docs/e2b-methods.md"
STATES = ("passes", "differs", "refused", "local")


class Row(NamedTuple):
    kind: str
    methods: tuple[str, ...]
    others: tuple[str, ...]
    state: str


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) == 5 and parts[3] in STATES:
            kind, methods, others, state, _ = parts
            found.append(
                Row(kind, tuple(re.findall(r"`(\w+)`", methods)), tuple(re.findall(r"`(\w+)`", others)), state)
            )
    return found


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@pytest.mark.parametrize("kind", sdk_names.PYTHON)
def test_every_method_is_in_the_table(kind: str) -> None:
    told = [name for row in rows() if row.kind == kind for name in row.methods]
    assert sorted(told) == sorted(sdk_names.of_python(kind))
    if not (MODULES / "node_modules/@e2b/code-interpreter").is_dir():
        pytest.skip(f"the npm package @e2b/code-interpreter is not installed in {MODULES}")
    others = {name for row in rows() if row.kind == kind for name in row.others}
    assert sdk_names.of_javascript(kind, MODULES) <= {camel(name) for name in told} | others


@contextmanager
def noted(called: set[tuple[str, str]]) -> Iterator[None]:
    """Notes the functions of the SDKs that are called in this thread, as class and name."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/e2b" in frame.f_code.co_filename:
            kind, _, name = frame.f_code.co_qualname.rpartition(".")
            called.add((kind, name))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Sdk(NamedTuple):
    """An SDK: sync or async."""

    sandbox: Any
    template: Any
    volume: Any
    secret: Any
    is_async: bool


SDKS = {
    "sync": Sdk(sdk_names.cells.Sandbox, e2b.Template, e2b.Volume, e2b.Secret, False),
    "async": Sdk(sdk_names.cells.AsyncSandbox, e2b.AsyncTemplate, e2b.AsyncVolume, e2b.AsyncSecret, True),
}


async def told(opts: dict[str, Any], sdk: Sdk) -> None:
    """Calls each method that passes or differs."""
    made = await got(sdk.sandbox.create(timeout=120, metadata={"tour": "1"}, **opts))
    pages = sdk.sandbox.list(**opts)
    assert pages.has_next
    assert made.sandbox_id in [each.sandbox_id for each in await got(pages.next_items())]
    assert pages.next_token is None
    assert (await got(made.get_info())).metadata == {"tour": "1"}
    await got(made.set_timeout(100))
    assert await got(made.is_running())
    assert await got(made.pause())
    again = await got(sdk.sandbox.connect(made.sandbox_id, **opts))
    assert not await got(made.beta_pause()) or await got(again.connect())
    assert (await got(made.get_metrics()))[0].mem_total
    assert made.get_host(80).startswith("80-")
    assert made.traffic_access_token
    with pytest.raises(e2b.SandboxException):
        await got(made.update_network({"allow_out": ["example.com"]}))
    assert "signature" in made.upload_url("a")
    assert "signature" in made.download_url("a")
    await _of_files(made, sdk)
    await _of_commands(made, sdk)
    await _of_git(made)
    assert (await got(made.run_code("6 * 7"))).text == "42"
    context = await got(made.create_code_context())
    assert context.id in [each.id for each in await got(made.list_code_contexts())]
    await got(made.restart_code_context(context))
    await got(made.remove_code_context(context))
    assert await got(made.kill())


async def _of_files(made: Any, sdk: Sdk) -> None:
    files = made.files
    assert await got(files.make_dir("d"))
    seen: list[Any] = []
    watch = await got(files.watch_dir("d", seen.append) if sdk.is_async else files.watch_dir("d"))
    await got(files.write("d/a", "text"))
    await got(files.write_files([{"path": "d/b", "data": "b"}]))
    for _ in range(600):
        if seen or (not sdk.is_async and watch.get_new_events()):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("no event came")
    await got(watch.stop())
    assert await got(files.read("d/a")) == "text"
    assert len(await got(files.list("d"))) == 2
    assert await got(files.exists("d/a"))
    assert (await got(files.get_info("d/a"))).size == 4
    await got(files.rename("d/a", "d/c"))
    await got(files.remove("d"))


async def _of_commands(made: Any, sdk: Sdk) -> None:
    commands, pty = made.commands, made.pty
    handle = await got(commands.run("cat; exit 3", background=True, stdin=True))
    assert handle.pid in [each.pid for each in await got(commands.list())]
    await got(commands.send_stdin(handle.pid, "1"))
    if sdk.is_async:
        given = commands.stream_input(handle.pid)
        await given.send("2")
        await given.close()
    else:
        commands.stream_input(handle.pid, ["2"])
    await got(handle.send_stdin("3"))
    await got(handle.disconnect())
    handle = await got(commands.connect(handle.pid))
    await got(handle.close_stdin())
    with pytest.raises(e2b.CommandExitException) as ended:
        await got(handle.wait())
    assert (ended.value.exit_code, ended.value.stderr) == (3, "")  # the first handle took some of the output
    if sdk.is_async:
        assert (handle.exit_code, handle.stderr, handle.error) == (3, "", "exit status 3")
        assert handle.stdout == ended.value.stdout
    reader = await got(commands.run("cat", background=True, stdin=True))
    await got(commands.close_stdin(reader.pid))
    assert (await got(reader.wait())).exit_code == 0
    sleeper = await got(commands.run("sleep 100", background=True))
    assert await got(sleeper.kill())
    sleeper = await got(commands.run("sleep 100", background=True))
    assert await got(commands.kill(sleeper.pid))
    size = e2b.PtySize(rows=20, cols=80)
    terminal = await got(pty.create(size, **({"on_data": lambda _: None} if sdk.is_async else {})))
    await got(pty.resize(terminal.pid, e2b.PtySize(rows=30, cols=80)))
    await got(pty.send_stdin(terminal.pid, b"true\n"))
    if sdk.is_async:
        typed = pty.stream_input(terminal.pid)
        await typed.send(b"true\n")
        await typed.close()
    else:
        pty.stream_input(terminal.pid, [b"true\n"])
    await got(terminal.disconnect())
    await got(pty.connect(terminal.pid, **({"on_data": lambda _: None} if sdk.is_async else {})))
    assert await got(pty.kill(terminal.pid))


async def _of_git(made: Any) -> None:
    git = made.git
    await got(git.init("up", bare=True))
    await got(git.configure_user("A", "a@example.com"))
    await got(git.init("repo", initial_branch="main"))
    await got(made.files.write("repo/a.txt", "a"))
    await got(git.add("repo"))
    await got(git.commit("repo", "first"))
    assert (await got(git.status("repo"))).is_clean
    await got(git.remote_add("repo", "origin", "/home/user/up"))
    assert await got(git.remote_get("repo", "origin")) == "/home/user/up"
    await got(git.push("repo", remote="origin", branch="main"))
    await got(git.clone("/home/user/up", path="copy", branch="main"))
    await got(git.pull("copy"))
    await got(git.create_branch("repo", "other"))
    await got(git.checkout_branch("repo", "main"))
    assert {"main", "other"} <= set((await got(git.branches("repo"))).branches)
    await got(git.delete_branch("repo", "other", force=True))
    await got(made.files.write("repo/a.txt", "b"))
    await got(git.restore("repo", paths=["a.txt"]))
    await got(git.reset("repo", mode="hard"))
    await got(git.set_config("core.editor", "true"))
    assert await got(git.get_config("core.editor")) == "true"
    await got(git.dangerously_authenticate("u", "t"))


def refused(opts: dict[str, Any], sdk: Sdk, made: Any) -> dict[tuple[str, str], Callable[[], Any]]:
    template, volume, secret = sdk.template, sdk.volume, sdk.secret
    described = template().from_image("debian")
    return {
        ("Sandbox", "create_snapshot"): made.create_snapshot,
        ("Sandbox", "list_snapshots"): lambda: made.list_snapshots().next_items(),
        ("Sandbox", "delete_snapshot"): lambda: sdk.sandbox.delete_snapshot("x", **opts),
        ("Sandbox", "fork"): made.fork,
        ("Sandbox", "get_mcp_token"): made.get_mcp_token,
        ("Template", "build"): lambda: template.build(described, "x", **opts),
        ("Template", "build_in_background"): lambda: template.build_in_background(described, "x", **opts),
        ("Template", "get_build_status"): lambda: template.get_build_status(
            e2b.BuildInfo(template_id="x", build_id="y", alias="x", name="x", tags=[]), **opts
        ),
        ("Template", "exists"): lambda: template.exists("x", **opts),
        ("Template", "alias_exists"): lambda: template.alias_exists("x", **opts),
        ("Template", "get_tags"): lambda: template.get_tags("x", **opts),
        ("Template", "assign_tags"): lambda: template.assign_tags("x:a", ["b"], **opts),
        ("Template", "remove_tags"): lambda: template.remove_tags("x", ["b"], **opts),
        ("Volume", "create"): lambda: volume.create("x", **opts),
        ("Volume", "connect"): lambda: volume.connect("x", **opts),
        ("Volume", "list"): lambda: volume.list(**opts),
        ("Volume", "get_info"): lambda: volume.get_info("x", **opts),
        ("Volume", "destroy"): lambda: volume.destroy("x", **opts),
        ("Secret", "create"): lambda: secret.create("x", "y", **opts),
        ("Secret", "update"): lambda: secret.update("x", "y", **opts),
        ("Secret", "get_info"): lambda: secret.get_info("x", **opts),
        ("Secret", "exists"): lambda: secret.exists("x", **opts),
        ("Secret", "list"): lambda: secret.list(**opts).next_items(),
        ("Secret", "destroy"): lambda: secret.destroy("x", **opts),
    }


@pytest.mark.parametrize("flavour", SDKS)
def test_methods_that_pass_are_called(yard: Yard, flavour: str) -> None:
    sdk, called = SDKS[flavour], set[tuple[str, str]]()
    opts = {name: value for name, value in yard.opts.items() if name != "retries"}
    with noted(called):
        asyncio.run(told(opts, sdk))
    for kind, methods, _, state in rows():
        kinds = [each for each in sdk_names.PYTHON[kind] if each.__name__.startswith("Async") == sdk.is_async]
        names = {base.__qualname__ for each in kinds for base in each.__mro__}
        has = {name for each in kinds for name in sdk_names.of_kind(each)}
        seen = {name for owner, name in called if owner in names}
        if state in ("passes", "differs"):
            assert {name for name in methods if name in has} <= seen, kind


@pytest.mark.parametrize("flavour", SDKS)
def test_methods_that_are_refused_say_so_in_its_shape(yard: Yard, flavour: str) -> None:
    sdk = SDKS[flavour]

    async def work() -> None:
        made = await got(sdk.sandbox.create(timeout=60, **yard.opts))
        calls = refused(yard.opts, sdk, made)
        wanted = {(kind, name) for kind, methods, _, state in rows() if state == "refused" for name in methods}
        assert calls.keys() == wanted
        for call, asked in calls.items():
            with pytest.raises(Exception, match=r"docs/e2b\.md|user 'root'") as told:
                await got(asked())
            assert type(told.value).__module__ == "e2b.exceptions", call
        await got(made.kill())

    asyncio.run(work())


def test_methods_of_javascript_are_called(yard: Yard) -> None:
    seen = json.loads(ran(yard, "tour.mjs"))
    for kind, methods, others, state in rows():
        has = sdk_names.of_javascript(kind, MODULES) & ({camel(name) for name in methods} | set(others))
        if state in ("passes", "differs") and kind in seen["called"]:
            assert has <= set(seen["called"][kind]), kind
        if state == "refused":
            assert {f"{kind}.{name}" for name in has} <= seen["refused"].keys()
    assert all("docs/e2b.md" in said or "user 'root'" in said for said in seen["refused"].values()), seen["refused"]
