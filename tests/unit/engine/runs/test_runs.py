"""The run object and the run record, for every way in which a run can end (skills-protocol §4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillyard.domain.errors import Busy, ProtectionMissing, SandboxFault, SandboxGone, StoreFault
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.work.record import Ending, Outcome, RunStatus, Usage
from skillyard.engine import driver
from skillyard.engine.observer import Fault, RunEnded, RunRefused, RunStarted
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import blob, frame, raises, result

pytestmark = pytest.mark.anyio


async def test_a_completed_run(rig: Rig) -> None:
    run = await rig.run(playing(result({"sum": 6}), log=b"hello\n"), args={"xs": [1, 2, 3]})
    assert run["status"] == "completed"
    assert run["output"] == {"sum": 6}
    assert run["output_blobs"] == []
    assert run["logs_preview"] == "hello\n"
    assert run["summary"].startswith("Completed in")
    assert "error" not in run
    assert await rig.content(run["logs_blob"]) == b"hello\n"
    record = await rig.record(run)
    assert record.status is RunStatus.COMPLETED
    assert record.outcome is Outcome.EXIT
    assert record.limits["timeout_ms"] == 300_000
    assert record.enforced["seccomp"] == "kernel"
    assert record.usage["cpu_ms"] == 1.0
    assert set(record.digests) == {"args", "code", "environment"}
    assert record.started_at is not None
    assert record.ended_at is not None
    assert rig.backend.held == {}
    assert rig.app.active == {}
    assert rig.app.admission.running == 0


async def test_the_guest_gets_what_was_asked(rig: Rig) -> None:
    await rig.run(args={"a": [1, {"b": None}]}, entrypoint="go", timeout_ms=1234, limits={"memory_mb": 64})
    spec, request, timeout = rig.backend.started[0]
    assert timeout == 1234
    assert (spec.limits.memory_mb, spec.limits.timeout_ms, spec.single) == (64, 1234, True)
    assert request["args"] == {"a": [1, {"b": None}]}
    assert (request["entrypoint"], request["code"], request["skill"]) == ("go", "def main(args): return args", None)
    assert request["blob_prefix"].startswith("blob:")
    assert request["env"] == {}


async def test_two_runs_never_share_a_prefix(rig: Rig) -> None:
    await rig.run()
    await rig.run()
    first, second = (request["blob_prefix"] for _, request, _ in rig.backend.started)
    assert first != second


@pytest.mark.parametrize(
    ("value", "output"),
    [({}, {}), ({"a": [1, None]}, {"a": [1, None]}), ({"a": "\ud800"}, {"a": "\ufffd"})],
)
async def test_the_returned_object_is_the_output(rig: Rig, value: Any, output: Any) -> None:
    assert (await rig.run(playing(result(value))))["output"] == output


async def test_a_status_in_the_returned_value_is_business_data(rig: Rig) -> None:
    run = await rig.run(playing(result({"status": "failed"})))
    assert (run["status"], run["output"]) == ("completed", {"status": "failed"})


async def test_a_returned_summary_is_used_and_cut(rig: Rig) -> None:
    run = await rig.run(playing(result({"summary": "é" * 500})))
    assert run["summary"] == "é" * 280
    assert (await rig.run(playing(result({"summary": 5}))))["summary"].startswith("Completed in")


async def test_output_of_exactly_4096_bytes_fits(rig: Rig) -> None:
    value = {"x": "é" * ((4096 - 8) // 2)}
    assert len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) == 4096
    assert (await rig.run(playing(result(value))))["output"] == value


async def test_one_byte_more_is_spilled_to_a_blob(rig: Rig) -> None:
    value = {"x": "y" * (4096 - 7)}
    run = await rig.run(playing(result(value)))
    assert run["status"] == "completed"
    stand_in = run["output"]
    assert stand_in == {"truncated": True, "blob_id": stand_in["blob_id"], "size_bytes": 4097}
    assert run["output_blobs"] == [stand_in["blob_id"]]
    assert stand_in["blob_id"] in run["summary"]
    assert json.loads(await rig.content(stand_in["blob_id"])) == value


async def test_oversize_output_fails_where_the_operator_says_so(rig: Rig) -> None:
    rig.configure(output={"oversize": "fail"})
    run = await rig.run(playing(result({"x": "y" * 5000})))
    assert (run["status"], run["error"]["type"]) == ("failed", "OutputTooLarge")
    assert "output" not in run


@pytest.mark.parametrize(
    "payload",
    [b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b"{", b"[1]", b"null", b'{"a":' * 900 + b"1" + b"}" * 900],
)
async def test_what_is_no_json_is_not_serializable(rig: Rig, payload: bytes) -> None:
    run = await rig.run(playing(frame(b"R", payload)))
    assert (run["status"], run["error"]["type"]) == ("failed", "OutputNotSerializable")


async def test_an_exception_is_a_failed_run(rig: Rig) -> None:
    run = await rig.run(playing(raises("KeyError", "'x'\nmore", "Traceback: " + "é" * 3000), log=b"before\n"))
    assert run["status"] == "failed"
    assert run["error"]["type"] == "KeyError"
    assert run["error"]["message"] == "'x'\nmore"
    assert len(run["error"]["traceback"].encode()) <= 2048
    assert run["summary"] == "KeyError: 'x'"
    assert run["logs_preview"] == "before\n"
    assert "output" not in run
    assert (await rig.record(run)).outcome is Outcome.EXIT


@pytest.mark.parametrize(
    ("ending", "type_", "said"),
    [
        (Ending(Outcome.TIMEOUT), "TimeoutError", "300000 ms; ask for more with timeout_ms"),
        (Ending(Outcome.MEMORY), "MemoryLimitExceeded", "512 MiB; ask for more with limits.memory_mb"),
        (Ending(Outcome.PROCESSES), "ProcessLimitExceeded", "256 processes"),
        (Ending(Outcome.DISK), "DiskLimitExceeded", "512 MiB"),
        (Ending(Outcome.OUTPUT), "OutputTooLarge", "output"),
        (Ending(Outcome.SIGNAL, signal=11), "SignalError", "SIGSEGV"),
        (Ending(Outcome.LOST, reason="its keeper ended"), "SandboxLost", "its keeper ended"),
        (Ending(Outcome.EXIT, code=3), "SystemExit", "code 3 before the function returned; return from the function"),
        (Ending(Outcome.CANCELLED), "Cancelled", "cancelled"),
    ],
)
async def test_every_outcome_has_its_error_type(rig: Rig, ending: Ending, type_: str, said: str) -> None:
    async def script(process: TwinProcess) -> None:
        process.log(b"so far")
        process.write(blob(1, "text/plain", b"evidence"))
        process.end(ending)

    run = await rig.run(script)
    assert (run["status"], run["error"]["type"]) == ("failed", type_)
    assert said in run["error"]["message"]
    assert (await rig.record(run)).outcome is ending.outcome
    assert run["logs_preview"] == "so far"
    assert [await rig.content(b) for b in run["output_blobs"]] == [b"evidence"]


@pytest.mark.parametrize(
    ("frame_", "type_", "outcome"),
    [
        (raises("OSError", "[Errno 28] No space left", errno=28), "DiskLimitExceeded", Outcome.DISK),
        (raises("MyError", "x", errno=28), "DiskLimitExceeded", Outcome.DISK),
        (raises("RuntimeError", "can't start new thread"), "ProcessLimitExceeded", Outcome.PROCESSES),
        (
            raises("BlockingIOError", "[Errno 11] Resource temporarily unavailable", errno=11),
            "ProcessLimitExceeded",
            Outcome.PROCESSES,
        ),
        (raises("MemoryError", ""), "MemoryLimitExceeded", Outcome.MEMORY),
        (raises("ImportError", "skill not mounted"), "ImportError", Outcome.EXIT),
        (raises("no name!", "x"), "Exception", Outcome.EXIT),
    ],
)
async def test_limits_that_reach_the_code_as_exceptions(rig: Rig, frame_: bytes, type_: str, outcome: Outcome) -> None:
    run = await rig.run(playing(frame_))
    assert run["error"]["type"] == type_
    assert (await rig.record(run)).outcome is outcome


async def test_usage_counts_what_the_backend_gave(rig: Rig) -> None:
    async def script(process: TwinProcess) -> None:
        process.write(result({}))
        usage = Usage(cpu_ms=5, peak_memory_bytes=7, wall_ms=9, startup_ms=2, source="cgroup")
        process.end(Ending(Outcome.EXIT, code=0, usage=usage))

    usage = (await rig.run(script))["usage"]
    assert usage == {
        "cpu_ms": 5,
        "peak_memory_bytes": 7,
        "wall_ms": 9,
        "startup_ms": 2,
        "queued_ms": 0.0,
        "source": "cgroup",
    }


async def test_a_missing_wall_refuses_before_a_sandbox(rig: Rig) -> None:
    rig.backend.protections["seccomp"] = Protection(Level.MISSING, why="old kernel", mend="upgrade")
    await rig.app.start()
    with pytest.raises(ProtectionMissing, match=r"seccomp \(old kernel; upgrade\)") as caught:
        await rig.run()
    assert caught.value.code == -32004
    assert rig.backend.started == []
    assert rig.of(RunRefused)[0].error == "ProtectionMissing"


async def test_a_sandbox_weaker_than_the_probe_promised_is_not_used(rig: Rig) -> None:
    del rig.backend.protections["landlock"]  # the engine's probe is older
    with pytest.raises(ProtectionMissing, match="landlock"):
        await rig.run()
    assert rig.backend.started == []
    assert rig.backend.held == {}
    [record] = await rig.app.ports.records.list(None)
    assert (record.status, record.error and record.error["type"]) == (RunStatus.FAILED, "ProtectionMissing")


async def test_allow_degraded_runs_and_the_record_says_so(rig: Rig) -> None:
    rig.backend.protections["landlock"] = Protection(Level.MISSING)
    rig.configure(policy={"allow_degraded": {"landlock"}})
    await rig.app.start()
    assert (await rig.run())["enforced"]["landlock"] == "missing"


async def test_require_kernel_refuses_what_is_only_watched(rig: Rig) -> None:
    rig.backend.protections["memory"] = Protection(Level.SUPERVISED)
    rig.configure(policy={"require": "kernel"})
    await rig.app.start()
    with pytest.raises(ProtectionMissing, match="memory"):
        await rig.run()


async def test_a_backend_that_is_not_ready_refuses(rig: Rig) -> None:
    rig.backend.ready = False
    await rig.app.start()
    with pytest.raises(ProtectionMissing, match="not ready"):
        await rig.run()


@pytest.mark.parametrize(
    ("fault", "type_", "outcome"),
    [(SandboxFault("no memory"), "SandboxError", None), (SandboxGone("keeper died"), "SandboxLost", Outcome.LOST)],
)
async def test_machinery_that_fails_is_a_failed_run(
    rig: Rig, fault: Exception, type_: str, outcome: Outcome | None
) -> None:
    rig.backend.faults.append(fault)
    run = await rig.run()
    assert (run["status"], run["error"]["type"]) == ("failed", type_)
    assert (await rig.record(run)).outcome is outcome


async def test_a_backend_that_is_full_is_busy(rig: Rig) -> None:
    rig.backend.faults.append(Busy("full", retry_after_ms=5))
    with pytest.raises(Busy):
        await rig.run()
    [record] = await rig.app.ports.records.list(None)
    assert record.status is RunStatus.FAILED


async def test_a_bug_of_ours_ends_the_run_and_leaks_nothing(rig: Rig) -> None:
    rig.backend.faults.append(ZeroDivisionError("secret internals"))
    with pytest.raises(ZeroDivisionError):
        await rig.run()
    [record] = await rig.app.ports.records.list(None)
    assert record.status is RunStatus.FAILED
    assert "internals" not in json.dumps(record.as_dict())
    assert rig.of(Fault)[0].run_id == record.run_id
    assert rig.app.admission.running == 0


async def test_events_tell_the_story(rig: Rig) -> None:
    run = await rig.run()
    [started], [ended] = rig.of(RunStarted), rig.of(RunEnded)
    assert started.run_id == ended.record.run_id == run["run_id"]
    assert started.kind == "run_code"


async def test_the_record_exists_before_the_sandbox(rig: Rig) -> None:
    seen: list[RunStatus] = []

    async def script(process: TwinProcess) -> None:
        record = await rig.app.ports.records.get(process.id)
        assert record is not None
        seen.append(record.status)
        process.write(result({}))

    await rig.run(script)
    assert seen == [RunStatus.RUNNING]


async def test_a_backend_that_no_longer_answers_ends_as_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PATIENCE_S", 0.02)

    async def deaf(process: TwinProcess) -> None:
        process.deaf = True
        await process.ended

    run = await rig.run(deaf, timeout_ms=1)
    assert (run["status"], run["error"]["type"]) == ("failed", "SandboxLost")
    assert rig.backend.held == {}
    assert rig.of(Fault)[0].where == "sandbox"


async def test_a_sandbox_that_cannot_be_destroyed_is_told_and_left_to_the_sweep(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(handle: str) -> Usage:
        raise SandboxFault("busy mount")

    monkeypatch.setattr(rig.backend, "destroy", refuse)
    run = await rig.run()
    monkeypatch.undo()
    assert run["status"] == "completed"
    assert [fault.where for fault in rig.of(Fault)] == ["destroy"]


async def test_a_record_that_cannot_be_written_stops_the_run_before_the_sandbox(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(record: object) -> None:
        raise StoreFault("disk full")

    monkeypatch.setattr(rig.app.ports.records, "insert", refuse)
    with pytest.raises(StoreFault):
        await rig.run()
    assert rig.backend.started == []
    assert rig.app.active == {}
    assert rig.app.admission.running == 0


@pytest.mark.parametrize(
    ("module", "admitted", "mend"),
    [
        ("pandas", "pandas", "ask for it with packages=['pandas'], or for environment='data', which has it"),
        ("pandas", "", "ask for environment='data', which has it"),
        ("cv2.data", "opencv-python", "ask for it with packages=['opencv-python']"),
        (
            "cv2",
            "",
            "do without it, or ask the operator: code asks for 'opencv-python', and packages.run_code does not",
        ),
    ],
)
async def test_a_missing_package_names_the_way_to_get_it(rig: Rig, module: str, admitted: str, mend: str) -> None:
    rig.configure(packages={"run_code": tuple(filter(None, [admitted]))})
    run = await rig.run(playing(raises("ModuleNotFoundError", f"No module named '{module}'")))
    assert run["error"]["message"].startswith(f"No module named '{module}'; {mend}")


@pytest.mark.parametrize("said", ["No module named 'os.nothing'; 'os' is not a package", "No module named " + "'" * 90])
async def test_other_import_errors_stay_as_they_are(rig: Rig, said: str) -> None:
    run = await rig.run(playing(raises("ModuleNotFoundError", said)))
    assert run["error"]["message"] == said


async def test_an_entrypoint_is_asked_for_only_by_name(rig: Rig) -> None:
    await rig.run(playing(result({})))
    assert rig.backend.started[-1][1]["entrypoint"] is None
    await rig.run(playing(result({})), entrypoint="main")
    assert rig.backend.started[-1][1]["entrypoint"] == "main"


async def test_the_summary_of_a_script_says_so(rig: Rig) -> None:
    run = await rig.run(playing(frame(b"N", b'{"script": true}'), result({})))
    assert (run["status"], run["output"]) == ("completed", {})
    assert run["summary"].endswith("; the code ran as a script, and no function 'main' was called")


def file_frames(n: int, path: Any, data: bytes) -> bytes:
    header = json.dumps({"n": n, "kind": "text/html", "path": path}).encode()
    return frame(b"B", header) + frame(b"D", n.to_bytes(4, "big") + data) + ended(n, len(data))


def ended(n: int, size: int) -> bytes:
    return frame(b"E", json.dumps({"n": n, "size": size}).encode())


async def test_files_that_a_run_left_are_listed_by_path(rig: Rig) -> None:
    frames = [file_frames(1, "plots/a.png", b"png"), file_frames(2, "b", b"x"), blob(3, "text/plain", b"y")]
    run = await rig.run(playing(*frames, result({})))
    ids = run["output_blobs"]
    assert run["files"] == [
        {"path": "plots/a.png", "blob_id": ids[0], "size": 3, "mime": "image/png"},
        {"path": "b", "blob_id": ids[1], "size": 1, "mime": "application/octet-stream"},
    ]
    assert len(ids) == 3
    assert (await rig.record(run)).files == tuple(run["files"])
    failed = await rig.run(playing(frames[0], raises("ValueError", "x")))
    assert [file["path"] for file in failed["files"]] == ["plots/a.png"]


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "a/../x", "a//b", "./a", "a/.", "", "a\\b", "a\x00b", "a\nb", "\u202ex", "x" * 256),
        *("a/" * 600 + "b", 5, None, ["a"]),
    ],
)
async def test_a_path_that_could_mean_another_place_ends_the_run(rig: Rig, path: Any) -> None:
    run = await rig.run(playing(file_frames(1, path, b"x"), result({})))
    assert run["error"]["message"] == "the run's channel was misused: a file has a path that cannot be passed on"
    assert (run["files"], run["output_blobs"]) == ([], [])


async def test_the_caps_on_files_hold_for_who_goes_round_the_guest(rig: Rig) -> None:
    rig.configure(blobs={"files_per_run": 2, "file_bytes": 10, "files_bytes": 15})
    for frames, said in (
        ([file_frames(n, f"f{n}", b"x") for n in (1, 2, 3)], "more than 2 files"),
        ([file_frames(1, "a", b"x" * 11)], "larger than is allowed"),
        ([file_frames(1, "a", b"x" * 9), file_frames(2, "b", b"x" * 9)], "larger than is allowed"),
        ([file_frames(1, "a", b"x"), file_frames(2, "a", b"x")], "a file comes twice"),
    ):
        run = await rig.run(playing(*frames, result({})))
        assert said in run["error"]["message"]


async def test_what_was_not_kept_is_told(rig: Rig) -> None:
    notes = {"skipped": [["link", "kind"], ["big\x1b[2J", "size"]], "others": ["report.csv"], "more": 2}
    run = await rig.run(playing(frame(b"N", json.dumps(notes).encode()), result({})))
    assert run["notes"] == [
        "not sent from /workspace/out: link (it is not a regular file), big\ufffd[2J (it is larger than a file may be)",
        "not kept: report.csv, …; write files that are to come back to /workspace/out",
    ]
    assert "not kept: report.csv" in run["summary"] or len(run["summary"]) == 280
    assert (await rig.record(run)).notes == tuple(run["notes"])


@pytest.mark.parametrize(
    "notes",
    [
        {"skipped": [["a", "b"]] * 11},
        {"others": ["a"] * 11},
        {"skipped": [["a"]]},
        {"skipped": [[1, 2]]},
        {"others": [1]},
        {"others": {}},
        {"more": -1},
        {"more": 1.5},
        {"more": 2**80},
    ],
)
async def test_notes_that_are_none_end_the_run(rig: Rig, notes: Any) -> None:
    run = await rig.run(playing(frame(b"N", json.dumps(notes).encode()), result({})))
    assert "a frame N tells of" in run["error"]["message"]
    twice = await rig.run(playing(frame(b"N", b"{}"), frame(b"N", b"{}"), result({})))
    assert "a second frame N" in twice["error"]["message"]
