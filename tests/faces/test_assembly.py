"""The runtime in process, over real stores and a sandbox that knows only exec."""

from __future__ import annotations

import asyncio
import io
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard import Runtime, SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir, DataDirInUse, DataDirUnusable
from skillyard.domain.errors import BlobNotFound, Forbidden, InvalidInput
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.guarantees import Probe
from skillyard.testing.twin_sandbox import TwinBackend, TwinProcess
from tests.unit.engine.fakes import result, succeed

pytestmark = pytest.mark.anyio


async def echo(process: TwinProcess) -> None:
    process.log(b"echo\n")
    process.write(result({"echo": process.request["args"]}))


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "data", backend=TwinBackend(echo)) as runtime:
        yield runtime


async def test_the_eight_methods_and_the_operators(runtime: Runtime) -> None:
    listed = await runtime.list_skills()
    assert "skills.protocol.guide" in [row["name"] for row in listed["skills"]]
    assert (await runtime.describe_skill("skills.protocol.guide"))["skill"]["kind"] == "instruction"
    file = await runtime.read_skill_file("skills.protocol.guide", "SKILL.md")
    assert file["content"].startswith("---")
    assert (await runtime.load_skills_protocol_guide()).startswith("#")
    run = await runtime.run_code("def main(args): return args", {"a": 1})
    assert (run.ok, run.output) == (True, {"echo": {"a": 1}})
    assert [r["run_id"] for r in (await runtime.list_runs())["runs"]] == [run.run_id]
    assert (await runtime.run_logs(run.run_id))["content"] == "echo\n"
    blob = await runtime.create_blob(b"\x00\x01", "application/octet-stream")
    assert (await runtime.read_blob(blob["blob_id"]))["size_bytes"] == 2
    assert await runtime.delete_blob(blob["blob_id"]) is True
    assert (await runtime.call("runs.show", {"run_id": run.run_id}))["run"]["principal"] == "local"


async def test_the_guide_cannot_be_executed(runtime: Runtime) -> None:
    with pytest.raises(InvalidInput, match="instruction skill"):
        await runtime.execute_skill("skills.protocol.guide")


async def test_blobs_stream_both_ways(runtime: Runtime, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    source = tmp_path / "in.bin"
    source.write_bytes(data)
    seen: list[tuple[int, int | None]] = []
    stored = await runtime.put_blob(source, progress=lambda done, total: seen.append((done, total)))
    assert (stored.size_bytes, seen[-1]) == (len(data), (len(data), len(data)))
    fetched = await runtime.get_blob(stored.blob_id, tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == data
    assert (fetched.size_bytes, fetched.total_bytes, fetched.kind) == (
        len(data),
        len(data),
        "application/octet-stream",
    )
    part = io.BytesIO()
    await runtime.get_blob(stored.blob_id, part, offset=100, length=50)
    assert part.getvalue() == data[100:150]
    assert b"".join([c async for c in runtime.stream_blob(stored.blob_id, offset=len(data) - 3)]) == data[-3:]
    with pytest.raises(InvalidInput, match="offset"):
        await runtime.get_blob(stored.blob_id, tmp_path / "none", offset=len(data))
    assert not (tmp_path / "none").exists()


async def test_blobs_of_others_cannot_be_fetched(tmp_path: Path) -> None:
    async with Runtime(tmp_path, backend=TwinBackend(succeed)) as runtime:
        stored = await runtime.put_blob(b"mine")
        runtime.principal = Principal("other", frozenset({Scope.BLOBS}))
        with pytest.raises(BlobNotFound):
            await runtime.get_blob(stored.blob_id, io.BytesIO())
        runtime.principal = Principal("other", frozenset({Scope.EXECUTE}))
        for attempt in (runtime.put_blob(b"x"), runtime.get_blob(stored.blob_id, io.BytesIO())):
            with pytest.raises(Forbidden):
                await attempt


async def test_the_data_directory_is_private_and_everything_survives_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "data"
    async with Runtime(home, backend=TwinBackend(echo)) as runtime:
        run = await runtime.run_code("x")
        stored = await runtime.put_blob(b"kept")
    async with Runtime(home, backend=TwinBackend(succeed)) as runtime:
        assert (await runtime.show_run(run.run_id))["run"]["status"] == "completed"
        assert (await runtime.read_blob(stored.blob_id))["size_bytes"] == 4
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for path in (p for p in home.rglob("*") if p.is_file() and "snapshots" not in p.parts):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 in (0, 0o44), path


async def test_a_data_directory_has_one_owner_and_the_error_names_it(tmp_path: Path) -> None:
    import os

    async with Runtime(tmp_path, backend=TwinBackend(succeed)):
        with pytest.raises(DataDirInUse, match=f"in use by process {os.getpid()}"):
            await Runtime(tmp_path, backend=TwinBackend(succeed)).open()
    async with Runtime(tmp_path, backend=TwinBackend(succeed)):
        pass


async def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataDirUnusable, match="cannot be used"), DataDir(tmp_path / "file" / "data").owned():
        pass


async def test_a_directory_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(DataDirUnusable, match="not a data directory of skillyard"), DataDir(tmp_path).owned():
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


async def test_opening_that_fails_lets_go_of_everything(tmp_path: Path) -> None:
    class Broken(TwinBackend):
        async def probe(self) -> Probe:
            raise RuntimeError("no probe")

    with pytest.raises(RuntimeError, match="no probe"):
        await Runtime(tmp_path, backend=Broken()).open()
    async with Runtime(tmp_path, backend=TwinBackend(succeed)) as runtime:
        assert (await runtime.run_code("x")).ok


async def test_a_closed_runtime_says_so(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, backend=TwinBackend(succeed))
    with pytest.raises(RuntimeError, match="not open"):
        await runtime.run_code("x")
    await runtime.open()
    await runtime.close()
    await runtime.close()
    with pytest.raises(RuntimeError, match="not open"):
        await runtime.run_code("x")


async def test_settings_and_directories_are_not_given_twice(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="settings"):
        Runtime(tmp_path, settings=load_settings(data_dir=tmp_path))


async def test_skills_come_from_the_directories_and_the_data_directory(tmp_path: Path) -> None:
    for home, name in ((tmp_path / "skills", "mine.one"), (tmp_path / "data" / "skills", "mine.two")):
        (home / name / "code").mkdir(parents=True)
        (home / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: x\n---\nText\n")
        (home / name / "code" / "main.py").write_text("def main(args):\n    return {}\n")
        (home / name / "skill.toml").write_text(
            f'name = "{name}"\nversion = "1.0.0"\ndescription = "x"\nkind = "action"\n'
            '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
        )
    async with Runtime(tmp_path / "data", skills_dirs=[tmp_path / "skills"], backend=TwinBackend(echo)) as runtime:
        listed = await runtime.list_skills(namespace="mine")
        assert [row["name"] for row in listed["skills"]] == ["mine.one", "mine.two"]
        assert (await runtime.execute_skill("mine.one", {"x": 2})).output == {"echo": {"x": 2}}


def test_the_synchronous_runtime(tmp_path: Path) -> None:
    threads = threading.active_count()
    with SyncRuntime(tmp_path, backend=TwinBackend(echo)) as runtime:
        run = runtime.run_code("x", {"a": 1})
        assert run.output == {"echo": {"a": 1}}
        stored = runtime.put_blob(b"0123456789")
        sink = io.BytesIO()
        runtime.get_blob(stored.blob_id, sink)
        assert sink.getvalue() == b"0123456789"
        assert b"".join(runtime.stream_blob(stored.blob_id, offset=5)) == b"56789"
        assert runtime.call("runs.list")["runs"][0]["run_id"] == run.run_id
        with pytest.raises(InvalidInput):
            runtime.call("run_code", {"code": "x"})
    with pytest.raises(RuntimeError, match="not open"):
        runtime.run_code("x")
    runtime.close()
    assert threading.active_count() == threads


def test_the_synchronous_runtime_serves_several_threads(tmp_path: Path) -> None:
    outputs: list[object] = []
    with SyncRuntime(tmp_path, backend=TwinBackend(echo)) as runtime:
        threads = [
            threading.Thread(target=lambda n=n: outputs.append(runtime.run_code("x", {"n": n}).output))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(str(output) for output in outputs) == [str({"echo": {"n": n}}) for n in range(8)]


async def test_closing_ends_the_runs_of_other_tasks(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def endless(process: TwinProcess) -> None:
        started.set()
        await process.ended

    runtime = Runtime(tmp_path, backend=TwinBackend(endless))
    await runtime.open()
    running = asyncio.create_task(runtime.run_code("x"))
    await started.wait()
    await runtime.close()
    run = await running
    assert (run.status, run.error and run.error["type"]) == ("failed", "Cancelled")
