"""skill.toml, rule by rule (skills-protocol §8), over parsed documents."""

from __future__ import annotations

import datetime as dt
import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.secret import Delivery
from skillyard.domain.skill.manifest import Manifest, check_manifest
from skillyard.domain.skill.report import Problem
from skillyard.domain.skill.skill import RuntimeSpec, SecretNeed, SkillKind

ACTION: dict[str, Any] = {
    "name": "sales.leads.sync",
    "version": "1.4.0",
    "description": "Sync leads",
    "kind": "action",
    "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
}


def check(changes: dict[str, Any], *, lenient: bool = False) -> tuple[Manifest | None, list[Problem]]:
    """ACTION with ``changes``; None removes a key."""
    document = {key: value for key, value in (ACTION | changes).items() if value is not None}
    return check_manifest(document, lenient=lenient)


def rules(changes: dict[str, Any], *, lenient: bool = False, level: str = "error") -> list[tuple[str, str]]:
    """(dotted path, rule) of every problem of a level."""
    _, problems = check(changes, lenient=lenient)
    return [(p.message.split(":")[0], p.rule) for p in problems if p.level == level]


def test_a_whole_manifest() -> None:
    manifest, problems = check_manifest(
        tomllib.loads(
            """
            name = "sales.leads.sync"
            version = "1.4.0"
            description = "Sync leads"
            kind = "action"
            namespace = "sales"
            tags = ["crm", "crm", "leads"]
            authors = ["A"]
            license = "MIT"
            homepage = "https://example.org"
            requires = ["sales.util", "sales.text >=1.2,<2"]
            inputs_schema = "resources/inputs.json"
            x-reviewed = 2026-01-02
            [runtime]
            language = "python"
            entrypoint = "code/main.py"
            export = "main"
            environment = "data"
            preload = false
            [permissions]
            network = ["api.x.com", "*.x.com:8443", "localhost"]
            secrets = ["API_KEY", {name = "OTHER", optional = true}]
            [limits]
            timeout_ms = 1000
            cpus = 0.5
            [outputs]
            type = "object"
            [dependencies]
            python = ["numpy >=2", "pillow[webp]>=11; python_version < '4'"]
            httpx = "*"
            rich = ">=14,<15"
            [tool.mine]
            anything = true
            """
        )
    )
    assert problems == []
    assert manifest is not None
    assert manifest.runtime == RuntimeSpec("python", "code/main.py", "main", "data", preload=False)
    assert manifest.tags == ("crm", "leads")
    needs = manifest.needs
    assert needs.network == ("api.x.com", "*.x.com:8443", "localhost")
    assert needs.secrets == (SecretNeed("API_KEY"), SecretNeed("OTHER", optional=True))
    assert needs.limits == {"timeout_ms": 1000, "cpus": 0.5}
    assert needs.requires == ("sales.util", "sales.text >=1.2.0,<2.0.0")
    assert needs.dependencies == (
        *("numpy >=2", "pillow[webp]>=11; python_version < '4'"),
        *("httpx", "rich>=14,<15"),
    )
    assert (manifest.inputs.file, manifest.outputs.inline) == ("resources/inputs.json", {"type": "object"})
    assert json.loads(json.dumps(manifest.data))["x-reviewed"] == "2026-01-02"


@pytest.mark.parametrize("key", ["name", "version", "description", "kind", "runtime"])
def test_required_keys(key: str) -> None:
    assert rules({key: None}) == [(key, "required")]


@pytest.mark.parametrize("key", ["name", "version", "description", "kind"])
@pytest.mark.parametrize(("value", "rule"), [(3, "type"), ("  ", "empty"), (["a"], "type")])
def test_required_keys_are_strings(key: str, value: object, rule: str) -> None:
    assert (key, rule) in rules({key: value})


@pytest.mark.parametrize("name", ["a.b.c", "a1.b2", "match.type", "a"])
def test_good_names(name: str) -> None:
    assert rules({"name": name}) == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, "name-alphabet") for name in ("A.b", "a_b", "a b", ".a", "a.", "é.b", "a/b", "a.b\n", "-a", "a--b")),
        ("a.import.b", "name-segment"),
        ("a.1b", "name-segment"),
        ("a." + "b" * 300, "name-length"),
    ],
)
def test_bad_names(name: str, rule: str) -> None:
    assert ("name", rule) in rules({"name": name})
    assert ("name", rule) in rules({"name": name}, lenient=True)


def test_hyphens_are_the_superset_of_lenient() -> None:
    assert rules({"name": "a.pdf-tools"}) == [("name", "name-alphabet")]
    assert rules({"name": "a.pdf-tools"}, lenient=True) == []


def test_keywords_are_fine_where_nobody_imports() -> None:
    assert rules({"name": "a.import.1b", "kind": "instruction", "runtime": None}) == []


def test_a_name_without_a_namespace_is_only_warned_of() -> None:
    assert rules({"name": "sync"}, level="warning") == [("name", "name-hierarchy")]


def test_namespace_is_the_first_segment() -> None:
    assert rules({"namespace": "sales"}) == []
    assert rules({"namespace": "sale"}) == [("namespace", "namespace")]


@pytest.mark.parametrize("version", ["1.4", "1.4.0.0", "latest", "1.4.0-01"])
def test_versions_are_semantic(version: str) -> None:
    assert rules({"version": version}) == [("version", "semver")]


def test_description_is_one_line() -> None:
    assert rules({"description": "a\nb"}) == [("description", "one-line")]
    assert rules({"description": "a\nb"}, lenient=True) == []


def test_kinds() -> None:
    assert rules({"kind": "tool"}) == [("kind", "kind")]
    assert rules({"kind": "instruction"}) == [("runtime", "runtime")]
    manifest, _ = check({"kind": "instruction", "runtime": None})
    assert manifest is not None
    assert (manifest.kind, manifest.runtime) == (SkillKind.INSTRUCTION, None)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("language", "bash", "language"),
        ("language", None, "required"),
        ("entrypoint", None, "required"),
        ("export", None, "required"),
        ("entrypoint", "../main.py", "path"),
        ("entrypoint", "/code/main.py", "path"),
        ("entrypoint", "code\\main.py", "path"),
        ("entrypoint", "code//main.py", "path"),
        ("entrypoint", "./main.py", "path"),
        ("entrypoint", "code/main.py\0", "path"),
        ("entrypoint", "code/main.sh", "entrypoint-file"),
        ("export", "not a name", "export"),
        ("export", "class", "export"),
        ("export", "a.b", "export"),
        ("environment", "../base", "environment"),
        ("environment", "", "empty"),
        ("environment", 3, "type"),
        ("preload", "no", "type"),
        ("preload", 0, "type"),
    ],
)
def test_runtime(key: str, value: object, rule: str) -> None:
    table = {k: v for k, v in (ACTION["runtime"] | {key: value}).items() if v is not None}
    assert rules({"runtime": table}) == [(f"runtime.{key}", rule)]


def test_runtime_is_a_table() -> None:
    assert rules({"runtime": "python"}) == [("runtime", "type")]


@pytest.mark.parametrize(
    "host",
    [
        *("api.x.com", "*.x.com", "x.com:443", "*.x.co.uk:8443", "10.0.0.1", "A.b", "x_y.com", "[::1]", "::1"),
        *("!admin.x.com", "x.com:80,443,8000-8100", "x.com:*", "10.0.0.0/8:5432", "[2001:db8::/32]:443"),
    ],
)
def test_hosts(host: str) -> None:
    assert rules({"permissions": {"network": [host]}}) == []


@pytest.mark.parametrize("host", ["*", "*:443", "0.0.0.0/0", "128.0.0.0/1", "::/0", "[2000::/3]:443"])
def test_every_host_is_a_warning(host: str) -> None:
    changes = {"permissions": {"network": [host]}}
    assert rules(changes, level="warning") == [("permissions.network[0]", "network-open")]


def test_the_words_none_and_open() -> None:
    assert rules({"permissions": {"network": "none"}}) == []
    assert rules({"permissions": {"network": "open"}}, level="warning") == [("permissions.network", "network-open")]
    assert rules({"permissions": {"network": "some"}}) == [("permissions.network", "type")]


@pytest.mark.parametrize("tool", ["git", "git.log", "git__", "__log", "*", "*__log", "git__a b", "git__a\n", "Git__a"])
def test_bad_tools(tool: str) -> None:
    assert rules({"permissions": {"tools": [tool]}}) == [("permissions.tools[0]", "tool-name")]


def test_tools_are_full_names_or_patterns_of_one_server() -> None:
    named = ["git__git_log", "git__*", "a-b__x.y?"]
    assert rules({"permissions": {"tools": named}}) == []
    assert rules({"permissions": {"tools": [f"git__t{number}" for number in range(65)]}}) == [
        ("permissions.tools", "tools-many")
    ]


def test_too_many_rules() -> None:
    assert rules({"permissions": {"network": ["x.com"] * 1001}}) == [("permissions.network", "network-many")]


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        *((h, "network-host") for h in ("https://x.com", "x.com/a", "*x.com", "a.*.com", "*.com", "x..com")),
        *((h, "network-host") for h in ("x.com:", "[::1", "-x.com", "x.com.", "*.*.com", "x com", "é.com")),
        ("x.com:0", "network-port"),
        ("x.com:65536", "network-port"),
        ("x.com:9-8", "network-port"),
        *((h, "network-host") for h in ("0x7f.1", "2130706433", "10.0.0.1/8", "[fe80::1%lo]", "!", "!!x.com", "*.*")),
        ("", "type"),
        (3, "type"),
    ],
)
def test_bad_hosts(host: object, rule: str) -> None:
    assert rules({"permissions": {"network": [host]}}) == [("permissions.network[0]", rule)]


@pytest.mark.parametrize(
    ("secret", "rule"),
    [
        *((s, "secret-name") for s in ("a b", "1A", "A-B", "A=B", "PATH", "LD_PRELOAD", "PYTHONPATH", "HOME", "É")),
        (3, "type"),
        ([], "type"),
    ],
)
def test_bad_secrets(secret: object, rule: str) -> None:
    assert rules({"permissions": {"secrets": [secret]}}) == [("permissions.secrets[0]", rule)]


def test_how_secrets_are_delivered() -> None:
    declared = [
        {"name": "A", "delivery": "gate", "hosts": ["api.x.com", "*.x.com:8443"]},
        {"name": "B", "hosts": ["x.y"]},
    ]
    manifest, problems = check({"permissions": {"secrets": declared}})
    assert manifest is not None
    assert problems == []
    assert manifest.needs.secrets == (
        SecretNeed("A", delivery=Delivery.GATE, hosts=("api.x.com", "*.x.com:8443")),
        SecretNeed("B", hosts=("x.y",)),
    )


@pytest.mark.parametrize(
    ("entry", "path", "rule"),
    [
        *(({"delivery": value}, "delivery", "secret-delivery") for value in ("mail", "", 3, ["gate"], None)),
        *(
            ({"hosts": [host]}, "hosts", "secret-host")
            for host in ("*", "10.0.0.1", "10.0.0.0/8", "!x.com", "https://x.com", "x.com:0", "[::1]", "é.com")
        ),
        ({"hosts": ["x.com"] * 33}, "hosts", "secret-host"),
        ({"hosts": "x.com"}, "hosts", "type"),
        ({"hosts": [5]}, "hosts[0]", "type"),
    ],
)
def test_deliveries_that_cannot_be(entry: dict[str, Any], path: str, rule: str) -> None:
    changes = {"permissions": {"secrets": [{"name": "A", **entry}]}}
    assert rules(changes) == [(f"permissions.secrets[0].{path}", rule)]


def test_secrets_as_tables() -> None:
    assert rules({"permissions": {"secrets": [{"optional": True}]}}) == [("permissions.secrets[0].name", "required")]
    changes = {"permissions": {"secrets": [{"name": "A", "optional": "yes"}]}}
    assert rules(changes) == [("permissions.secrets[0].optional", "type")]
    assert rules({"permissions": {"secrets": ["A", {"name": "A"}]}}) == [("permissions.secrets", "secret-duplicate")]
    assert rules({"permissions": {"secrets": "A"}}) == [("permissions.secrets", "type")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("timeout_ms", v) for v in (0, -1, 1.5, "1", True)),
        *(("memory_mb", 1), ("cpus", float("nan")), ("cpus", 0), ("pids", 1), ("disk_mb", 0), ("ram", 1)),
    ],
)
def test_bad_limits(name: str, value: object) -> None:
    assert {path for path, _ in rules({"limits": {name: value}})} == {f"limits.{name}"}


def test_a_limit_above_any_policy_is_the_policys_business() -> None:
    assert rules({"limits": {"timeout_ms": 10**9, "memory_mb": 10**6}}) == []


@pytest.mark.parametrize(
    "requirement",
    ["https://x.org/a.whl", "a @ https://x.org/a.whl", "./a", "-r other.txt", "a==", "a b", "a>=1,,<2", "a>=1(", "é"],
)
def test_bad_dependencies(requirement: str) -> None:
    changes = {"dependencies": {"python": [requirement]}}
    assert rules(changes) == [("dependencies.python[0]", "dependency")]


def test_dependency_ranges_are_strings() -> None:
    assert rules({"dependencies": {"numpy": {"version": "2"}}}) == [("dependencies.numpy", "dependency")]
    assert rules({"dependencies": ["numpy"]}) == [("dependencies", "type")]


def test_requires() -> None:
    assert rules({"requires": ["a ^1"]}) == [("requires[0]", "requires")]
    assert rules({"requires": ["a", "a >=1"]}) == [("requires", "requires-duplicate")]
    assert rules({"requires": "a"}) == [("requires", "type")]


def test_schemas_stand_in_one_place() -> None:
    assert rules({"inputs": {}, "inputs_schema": "a.json"}) == [("inputs_schema", "schema-twice")]
    assert rules({"outputs_schema": "../a.json"}) == [("outputs_schema", "path")]
    assert rules({"inputs": []}) == [("inputs", "type")]


def test_unknown_keys_are_warned_of_and_extensions_are_free() -> None:
    changes = {"resources": {"a": 1}, "titel": "x", "tool": {"a": {"b": 1}}, "x-mine": {"c": 1}}
    assert rules(changes) == []
    assert rules(changes, level="warning") == [("resources", "unknown-key"), ("titel", "unknown-key")]
    assert rules({"permissions": {"secret": ["A"]}}, level="warning") == [("permissions.secret", "unknown-key")]


def test_values_that_json_does_not_have() -> None:
    assert rules({"x-a": [float("inf")]}) == [("x-a[0]", "number")]
    manifest, _ = check({"x-a": {"when": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "at": dt.time(5, 6)}})
    assert manifest is not None
    assert manifest.data["x-a"] == {"when": "2026-01-02T03:04:00+00:00", "at": "05:06:00"}


def test_depth_is_bounded() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    assert rules({"x-a": value}) == [("the document", "depth")]


def test_messages_show_a_value_unless_it_may_hold_a_secret() -> None:
    _, problems = check({"name": "Top \x1b[2J Name", "permissions": {"network": ["http://hunter2"]}})
    text = " ".join(problem.message for problem in problems)
    assert "hunter2" not in text
    assert "'Top \\x1b[2J Name'" in text


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*ACTION, "permissions", "limits", "dependencies", "requires"]), json_like))
def test_any_document_gives_a_manifest_or_an_error(changes: dict[str, Any]) -> None:
    manifest, problems = check_manifest(ACTION | changes)
    assert (manifest is None) == any(problem.level == "error" for problem in problems)
    if manifest is not None:
        json.dumps(manifest.data, allow_nan=False)


@pytest.mark.parametrize("image", [f"sha256:{'a' * 64}", f"reg.test:5000/team/py@sha256:{'0' * 64}"])
def test_an_image_is_named_by_digest(image: str) -> None:
    manifest, problems = check({"runtime": {**ACTION["runtime"], "image": image}})
    assert manifest is not None
    assert manifest.runtime is not None
    assert (manifest.runtime.image, problems) == (image, [])


@pytest.mark.parametrize(
    "image", ["python:3.11", "sha256:1", f"sha256:{'A' * 64}", f"x/../y@sha256:{'0' * 64}", "@sha256"]
)
def test_an_image_by_name_is_refused(image: str) -> None:
    assert rules({"runtime": {**ACTION["runtime"], "image": image}}) == [("runtime.image", "image")]
