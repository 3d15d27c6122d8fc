"""Every method's example works over a real runtime, and every result is what the table says that it is."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from skillyard import SyncRuntime
from skillyard.bundled import EXAMPLES
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.table import METHODS, openrpc
from skillyard.stores.disk import remove_tree
from tests.bundles import skill_files, tar
from tests.unit.engine.packages.index import Index

pytestmark = pytest.mark.timeout(240)

BLOB, RUN, TASK, SERVICE, JOB = "blob:EXAMPLE", "run_EXAMPLE", "run_TASK", "run_SERVICE", "job_JOB"
NEEDS = b'\n[permissions]\nnetwork = ["api.example.com:443"]\nsecrets = ["CRM_TOKEN"]\n'
LONG = {"language": "python", "code": "import time\ndef main(args): time.sleep(100)", "network": ["*.example.com:443"]}
CONNECTS = """
import os, socket
def main(args):
    os.makedirs("out", exist_ok=True)
    open("out/note.txt", "w").write("kept")
    print("said")
    try:
        socket.create_connection(("10.0.0.1", 443), 2)
    finally:
        return {"summary": "refused"}
"""
SCENARIO = """
rpc.discover list_skills describe_skill read_skill_file load_skills_protocol_guide create_blob
read_blob blobs.list blobs.stat secrets.set secrets.list secrets.bind secrets.rollback run_code
catalogue.needs catalogue.approve catalogue.approvals execute_skill catalogue.revoke secrets.audit
skills.run_cmd skills.read_artifact skills.sessions skills.end_session skills.run_cmd_async skills.task_watch
skills.task_status skills.task_logs skills.task_cancel skills.tasks skills.run_service skills.open_service
skills.start_job skills.job_watch skills.job_status skills.job_cancel skills.jobs runs.set_network runs.cancel runs.list
runs.show runs.logs runs.wait runs.events policy.explain policy.show
catalogue.versions catalogue.pin catalogue.unpin catalogue.diff catalogue.review catalogue.problems
catalogue.withdraw catalogue.restore environments.build environments.show environments.list
environments.wheels environments.remove skills.list skills.load skills.activate skills.upload
skills.set_version skills.disable skills.delete
tools.refresh tools.approve tools.list tools.rows tools.call tools.servers tools.revoke tools.stop
server.drain secrets.delete blobs.delete
"""
ORDER = SCENARIO.split()
TOY = Path(__file__).parent / "gateway" / "toy"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp("openrpc")
    home.chmod(0o755)
    shutil.copytree(EXAMPLES, home / "skills")
    (home / "skills" / "broken").mkdir()
    (home / "skills" / "broken" / "skill.toml").write_text("name = ")
    with Index() as index:
        index.add("alpha")
        settings = load_settings(
            data_dir=home / "data",
            skills_dirs=[home / "skills"],
            environments={"tables": {"packages": ["alpha"]}},
            packages={"index": index.url, "run_code": ["*"]},
            network={"rules": ["*.example.com:443"], "run_code": ["*.example.com:443"]},
            mcp={
                "servers": {
                    "git": {"command": ["python3", "toy_server.py"], "source": TOY, "env": {"TOY_TOOLS": "git_status"}}
                }
            },
        )
        with SyncRuntime(settings=settings) as runtime:
            for version in ("1.0.0", "1.1.0"):
                files = skill_files("acme.words.say", version, word=version)
                files["skill.toml"] += NEEDS
                runtime.publish_skill(io.BytesIO(tar(files)))
            yield runtime
    remove_tree(home)


@pytest.fixture(scope="module")
def answers(runtime: SyncRuntime) -> dict[str, Any]:
    """By method; each example is called once, with ids that exist in the place of the made up ones."""
    found: dict[str, Any] = {}
    runtime._inner.app.services.endpoints.own_port = 8765  # as that of a server
    for name in ORDER:
        ids = {
            BLOB: found.get("create_blob", {}).get("blob_id"),
            RUN: found.get("run_code", {}).get("run_id"),
            TASK: found.get("skills.run_cmd_async", {}).get("task_id"),
            SERVICE: found.get("skills.run_service", {}).get("task_id"),
            JOB: found.get("skills.start_job", {}).get("job_id"),
        }
        params = placed(METHODS[name].example, ids)
        if name in ("runs.set_network", "runs.cancel"):
            with at_work(runtime) as run_id:
                found[name] = runtime.call(name, placed(METHODS[name].example, {RUN: run_id}))
        elif name == "skills.upload":
            archive = runtime.put_blob(tar(skill_files("acme.words.again")), "application/gzip")
            found[name] = runtime.call(name, placed(METHODS[name].example, {BLOB: archive.blob_id}))
        else:
            found[name] = runtime.call(name, params)
        if name == "skills.open_service":
            runtime.task_cancel(found["skills.run_service"]["task_id"])
        if name == "skills.disable":
            runtime.call(name, {**METHODS[name].example, "enabled": True})
    return found


class at_work:
    """A run that goes on; cancelled at the end."""

    def __init__(self, runtime: SyncRuntime) -> None:
        self._runtime = runtime
        self._thread = threading.Thread(target=runtime.call, args=("run_code", LONG))
        self._run_id = ""

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            running = self._runtime.call("runs.list", {"status": "running"})["runs"]
            if running and self._is_at_work(running[0]["run_id"]):
                self._run_id = running[0]["run_id"]
                return self._run_id
            threading.Event().wait(0.05)
        raise TimeoutError

    def _is_at_work(self, run_id: str) -> bool:
        """Its network can be changed from the moment on at which its sandbox has one."""
        try:
            self._runtime.set_run_network(run_id, ["*.example.com:443"])
        except InvalidInput:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._runtime.call("runs.cancel", {"run_id": self._run_id})
        self._thread.join(60)


def placed(value: Any, ids: Mapping[str, Any]) -> Any:
    text = json.dumps(value)
    for made_up, real in ids.items():
        text = text.replace(made_up, str(real))
    return json.loads(text)


def closed(schema: Any) -> Any:
    """The schema without room for members that it does not list."""
    if isinstance(schema, (list, tuple)):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


def complaints(method: str, answer: Any) -> list[str]:
    validator = jsonschema_rs.validator_for(closed(METHODS[method].result))
    return [
        f"{method}: {'/'.join(map(str, e.instance_path))}: {e.message[:300]}" for e in validator.iter_errors(answer)
    ]


def test_every_method_has_its_turn() -> None:
    assert sorted(ORDER) == sorted(METHODS)


@pytest.mark.parametrize("method", ORDER)
def test_the_result_of_the_example_is_as_the_table_says(answers: dict[str, Any], method: str) -> None:
    assert complaints(method, answers[method]) == []


def test_examples_leave_out_nothing_that_is_required() -> None:
    for method in METHODS.values():
        assert set(method.params["required"]) <= set(method.example), method.name


def test_further_results_are_as_the_table_says(runtime: SyncRuntime, answers: dict[str, Any]) -> None:
    """Failed runs, connections, long descriptions and builds that fail hold members that examples do not."""
    assert answers
    run = runtime.call("run_code", {"language": "python", "code": CONNECTS})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("run_code", {"language": "python", "code": "def main(args): return 1 / 0"}),
        ("run_code", {"language": "python", "code": CONNECTS, "mount_skills": ["acme.words.say"]}),
        ("runs.show", {"run_id": run["run_id"]}),
        ("runs.list", {}),
        ("list_skills", {}),
        *(("describe_skill", {"name": "table-review", "detail": detail}) for detail in ("manifest", "summary", "full")),
        ("catalogue.versions", {"name": "examples.csv.summarize"}),
        ("catalogue.needs", {"name": "examples.csv.summarize"}),
        ("catalogue.review", {"name": "examples.leads.sync"}),
        ("policy.explain", {"targets": ["api.example.com", "10.0.0.5:5432"], "skill": "acme.words.say"}),
        ("environments.build", {"packages": ["not-there"]}),
        ("environments.list", {}),
    ]
    assert [text for name, params in calls for text in complaints(name, runtime.call(name, params))] == []
    assert runtime.call("runs.show", {"run_id": run["run_id"]})["run"]["network"]["connections"]


def test_brief_is_what_a_model_needs(runtime: SyncRuntime) -> None:
    full = runtime.call("run_code", {"language": "python", "code": CONNECTS})
    brief = runtime.run_code(CONNECTS, detail="brief")
    assert set(brief) == {
        *("run_id", "status", "outcome", "summary", "output"),
        *("logs_preview", "output_blobs", "files"),
    }
    assert set(brief) < set(full)
    assert brief.output == full["output"] == {"summary": "refused"}
    assert [file.path for file in brief.files] == ["note.txt"]
    record = runtime.show_run(brief.run_id, detail="brief")["run"]
    assert record == dict(brief)
    failed = runtime.run_code("def main(args): return 1 / 0", detail="brief")
    assert set(failed) == {"run_id", "status", "outcome", "summary", "error"}
    assert complaints("runs.show", {"run": record}) == complaints("run_code", dict(failed)) == []


def test_a_repeated_key_gets_the_first_run_in_any_detail(runtime: SyncRuntime) -> None:
    first = runtime.run_code("def main(args): return {}", idempotency_key="once")
    again = runtime.run_code("def main(args): return {}", idempotency_key="once", detail="brief")
    assert again.run_id == first.run_id
    assert "usage" in first
    assert "usage" not in again


def test_the_document_is_whole() -> None:
    """Names are unique, references lead somewhere, and each schema is one."""
    document = openrpc()
    assert [method["name"] for method in document["methods"]] == list(METHODS)
    assert document["openrpc"].startswith("1.3.")
    references = {text for text in strings(document) if text.startswith("#/")}
    for reference in references:
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    for method in document["methods"]:
        schema = {**method["result"]["schema"], "components": document["components"]}
        jsonschema_rs.validator_for(schema)
        order = [param["required"] for param in method["params"]]
        assert order == sorted(order, reverse=True)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)


def test_everybody_with_a_token_gets_the_document() -> None:
    row = METHODS["rpc.discover"]
    for scope in Scope:
        Principal("ann", frozenset({scope})).require(row.scope, row.also)
