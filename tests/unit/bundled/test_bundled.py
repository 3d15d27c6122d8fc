"""The guide and the example skills: valid, true to the method table, and doing what they say."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
import random
import statistics
import sys
import tracemalloc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from skillyard.bundled import EXAMPLES, GUIDE
from skillyard.domain.skill.skill import Skill, SkillKind
from skillyard.engine.table import METHODS
from skillyard.guest.imports import SkillFinder
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.validation.bundle import validate

SKILLS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())


class Runtime:
    """A stand-in for ``runtime`` over files: blobs by id, and the log."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kinds: dict[str, str] = {}
        self.log: list[str] = []

    def put(self, text: str, kind: str = "text/csv") -> str:
        blob_id = f"blob:{len(self.kinds) + 1}"
        (self.home / blob_id).write_bytes(text.encode())
        self.kinds[blob_id] = kind
        return blob_id

    def path(self, blob_id: str) -> str:
        return str(self.home / blob_id)

    def read_text(self, blob_id: str) -> str:
        return (self.home / blob_id).read_bytes().decode()

    def write_text(self, content: str, kind: str = "text/plain") -> str:
        return self.put(content, kind)

    def write_json(self, obj: object, kind: str = "application/json") -> str:
        return self.put(json.dumps(obj), kind)

    def info(self, message: str) -> None:
        self.log.append(message)

    warning = info


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """Mounts every example as the guest does."""
    made = Runtime(tmp_path)
    module = ModuleType("runtime")
    module.__dict__.update(blobs=made, log=made)
    mounts = {path.name: {"root": str(path), "entry": "code/main.py"} for path in SKILLS if (path / "code").is_dir()}
    finder = SkillFinder(mounts)
    sys.modules["runtime"] = module
    sys.meta_path.insert(0, finder)
    try:
        yield made
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n in ("runtime", "skills") or n.startswith("skills.")]:
            del sys.modules[name]


def skill(name: str) -> Any:
    return import_module(f"skills.{name}")


@pytest.mark.parametrize("path", [GUIDE, *SKILLS], ids=lambda path: path.name)
def test_strictly_valid(path: Path) -> None:
    assert validate(path, "strict") == []


@pytest.mark.anyio
async def test_the_catalogue_serves_them(tmp_path: Path) -> None:
    skills = Catalogue([EXAMPLES], tmp_path / "snapshots")
    names = [line.name for line in await skills.page(None, 100)]
    assert names == [
        *("examples.csv.summarize", "examples.gif.animate", "examples.leads.sync", "examples.model.fit"),
        *("examples.sheet.build", "examples.text.keywords"),
        *("skills.protocol.guide", "table-review"),
    ]
    assert list(await skills.problems()) == []
    guide = await skills.get("skills.protocol.guide")
    assert (guide.version, guide.kind) == ("0.1.0", SkillKind.INSTRUCTION)
    assert guide.body.startswith("# ")
    for name in names:
        check_schemas(await skills.get(name))
    await skills.close()


def check_schemas(served: Skill) -> None:
    if served.kind is SkillKind.ACTION:
        assert served.inputs_schema


def test_the_guide_names_every_tool_and_parameter() -> None:
    text = (GUIDE / "SKILL.md").read_text()
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `") and row.count("|") == 4}
    protocol = [method for method in METHODS.values() if method.surface == "protocol"]
    assert len(protocol) == 8
    for method in protocol:
        row = rows[method.name]
        missing = [name for name in method.params["properties"] if f"`{name}`" not in row]
        told_once = {"idempotency_key", "detach", "detail", "labels", "image", "isolation", "network", "tools"}
        assert set(missing) <= told_once
        assert all(f"`{name}`" in text for name in missing)
        required = [name for name in method.params["required"] if f"`{name}`*" not in row]
        assert required == []


def test_the_guides_code_is_python() -> None:
    text = (GUIDE / "SKILL.md").read_text()
    for block in text.split("```python\n")[1:]:
        compile(block.split("```")[0], "guide", "exec")


def test_the_guides_example_runs(runtime: Runtime) -> None:
    text = (GUIDE / "SKILL.md").read_text()
    call = json.loads(next(b for b in text.split("```json\n") if '"run_code"' in b).split("```")[0].replace("…", ""))
    params = call["params"]
    METHODS["run_code"].bind({**params, "input_blobs": ["blob:1"]})
    space: dict[str, Any] = {}
    exec(params["code"], space)
    orders = runtime.put("order_id,region,amount\n1,north,100\n2,south,10\n3,north,50\n")
    assert space["main"]({"orders": orders}) == {"summary": "north sells best", "region": "north", "average": 75.0}


def table(rows: list[list[object]], header: list[str], delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([header, *rows])
    return out.getvalue()


def test_summarize_is_right(runtime: Runtime) -> None:
    source = random.Random(3)
    numbers = [source.gauss(1e6, 5) for _ in range(12_001)]
    rows: list[list[object]] = [[n, f"v{i % 3}", "" if i % 10 else 7] for i, n in enumerate(numbers)]
    blob = runtime.put(table(rows, ["a", "b|c", ""], ";"))
    module = skill("examples.csv.summarize")
    result = module.main({"blob": blob})
    assert result["summary"] == "12,001 rows, 3 columns: 2 of numbers, 1 of text."
    first, second, third = module.profile_blob(blob).columns
    assert first.mean == pytest.approx(statistics.fmean(numbers), rel=1e-12)
    assert first.deviation == pytest.approx(statistics.stdev(numbers), rel=1e-9)
    assert (first.low, first.high, first.more) == (min(numbers), max(numbers), True)
    assert second.top(1) == [("v0", 4001)]
    assert (third.name, third.missing, third.count) == ("column 3", 10_800, 1201)
    report = runtime.read_text(result["report_blob"])
    assert runtime.kinds[result["report_blob"]] == "text/markdown"
    assert "| b\\|c |" in report
    assert len(json.dumps(result)) < 4096


def test_summarize_copes_with_odd_tables(runtime: Runtime) -> None:
    main = skill("examples.csv.summarize").main
    result = main({"blob": runtime.put('\ufeffa,b\r\n1,x,extra\r\n\r\n2\r\n"q\nq",nan\r\n')})
    assert (result["rows"], result["ragged"]) == (3, 1)
    assert [column["kind"] for column in result["columns"]] == ["text", "text"]
    assert main({"blob": runtime.put("a,b\n")})["rows"] == 0
    wide = main({"blob": runtime.put(",".join("x" * 100 + str(i) for i in range(300)) + "\n")})
    assert len(json.dumps(wide)) < 4096
    with pytest.raises(ValueError, match="the CSV is empty"):
        main({"blob": runtime.put("")})


def test_summarize_streams(runtime: Runtime) -> None:
    """The rows are more than 8 MB as lists."""
    rows: list[list[object]] = [[i, "north", i * 0.5] for i in range(25_000)]
    blob = runtime.put(table(rows, ["id", "region", "amount"]))
    profile = skill("examples.csv.summarize").profile_blob
    tracemalloc.start()
    try:
        profile(blob)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_keywords(runtime: Runtime) -> None:
    module = skill("examples.text.keywords")
    text = "The lighthouse keeper sleeps. The lighthouse keeper's lamp doesn't! Is 42 a lamp? Lamp."
    result = module.main({"text": text, "top": 2})
    assert result["keywords"] == [["lamp", 3], ["lighthouse", 2]]
    assert (result["words"], result["sentences"]) == (14, 4)
    assert module.main({"blob": runtime.put(text)})["words"] == 14
    assert module.main({"text": ""})["summary"] == "0 words, about: nothing in particular."
    assert list(skill("examples.text.keywords.words").tokens("It\u2019s")) == ["it's"]


@pytest.mark.parametrize(
    ("args", "fine"),
    [({"text": "a"}, True), ({"blob": "b"}, True), ({}, False), ({"text": "a", "blob": "b"}, False), ({"x": 1}, False)],
)
def test_keywords_schema(args: dict[str, str], fine: bool) -> None:
    schema = json.loads((EXAMPLES / "examples.text.keywords" / "resources" / "inputs.json").read_text())
    assert Draft202012Validator(schema).is_valid(args) == fine


def test_leads(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLES_CRM_KEY", "key")
    sheet = "name,email,company\nAda  L.,ADA@x.org,Acme\nAda,ada@x.org,\n,bob@x.org,\nEve,no address,\nMax,,\n"
    main = skill("examples.leads.sync").main
    result = main({"sheet_blob": runtime.put(sheet)})
    assert (result["accepted"], result["duplicates"], result["rejected"]) == (1, 1, 3)
    batch = json.loads(runtime.read_text(result["batch_blob"]))
    assert batch["leads"] == [{"email": "ada@x.org", "name": "Ada L.", "company": "Acme"}]
    text = json.dumps(batch["leads"], sort_keys=True, separators=(",", ":"))
    assert batch["signature"] == hmac.new(b"key", text.encode(), hashlib.sha256).hexdigest()
    assert [row["line"] for row in json.loads(runtime.read_text(result["rejected_blob"]))] == [4, 5, 6]
    assert runtime.log == [
        "line 4: the name is missing",
        "line 5: the email is no address",
        "line 6: the email is missing",
    ]
    assert "batch_blob" not in main({"sheet_blob": runtime.put(sheet), "dry_run": True})
