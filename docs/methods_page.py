"""The reference of methods, from the method table: what ``docs/generate.py`` writes as ``methods.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skillyard.engine.method import Method
from skillyard.engine.table import METHODS, openrpc

HEAD = """# Methods

Called by `POST /rpc` (JSON-RPC 2.0, `params` by name), by `Client.call` and by `Runtime.call`. The first eight are the
Skills Protocol's; those with a dot are additive, for operators of the server. An unknown parameter is refused.
Every method may answer `-32602` `InvalidParams`, `-32001` `Unauthenticated`, `-32003` `Forbidden` and `-32603`
`InternalError` besides the errors that it lists. A run that fails is no error: `status` says so.

The same as an OpenRPC document, with JSON Schema of each parameter and result: the method `rpc.discover`, and
[openrpc.json](openrpc.json). Types that begin with a capital letter stand at the [end](#values) of this page. Ids
of the examples are made up. A result may have more members than are listed; those that are listed stay.
"""


def methods_page(note: str) -> str:
    """Returns the page, which begins with ``note``."""
    ordered = sorted(METHODS.values(), key=lambda method: method.surface != "protocol")
    return "\n".join([note, HEAD, *(_method(method) for method in ordered), *_values()])


def openrpc_file() -> str:
    """Returns the text of ``openrpc.json``."""
    return json.dumps(openrpc(), indent=1) + "\n"


def client_table() -> str:
    """Returns the text of the client's module of facts about methods."""
    return "\n".join(
        [
            '"""Facts of the server\'s methods. ``docs/generate.py`` writes this module from the method table."""\n',
            "from __future__ import annotations\n",
            *_names("REPEATABLE", (method.name for method in METHODS.values() if method.repeatable)),
            '"""Methods that may be sent twice."""\n',
            *_names("RUNS", (method.name for method in METHODS.values() if method.runs)),
            '"""Methods that start a run."""\n',
        ]
    )


def _names(constant: str, names: Iterable[str]) -> Iterator[str]:
    yield f"{constant} = frozenset("
    yield "    {"
    yield from (f'        "{name}",' for name in sorted(names))
    yield "    }"
    yield ")"


def _method(method: Method[Any]) -> str:
    scopes = " or ".join(f"`{scope}`" for scope in sorted({method.scope, *method.also}))
    twice = " May be sent twice." if method.repeatable else ""
    lines = [f"## {method.name}\n", f"{method.doc} Scope: {scopes}.{twice}\n"]
    if method.params["properties"]:
        lines += ["| parameter | type | default | |", "| --- | --- | --- | --- |"]
        required = method.params["required"]
        lines += [_parameter(name, rules, name in required) for name, rules in method.params["properties"].items()]
        lines.append("")
    result = openrpc_result(method)
    if "$ref" in result:
        lines.append(f"Result: {_type(result)}.\n")
    else:
        lines += ["Result:\n", *_fields(result), ""]
    if method.errors:
        errors = ", ".join(f"`{error.type}` ({error.code})" for error in method.errors)
        lines.append(f"Errors: {errors}.\n")
    request = {"jsonrpc": "2.0", "id": 1, "method": method.name, "params": dict(method.example)}
    lines.append(f"```json\n{json.dumps(request)}\n```\n")
    return "\n".join(lines)


def openrpc_result(method: Method[Any]) -> Mapping[str, Any]:
    """Returns the schema of the method's result with references in it."""
    (found,) = (told for told in openrpc()["methods"] if told["name"] == method.name)
    schema: Mapping[str, Any] = found["result"]["schema"]
    return schema


def _values() -> Iterator[str]:
    yield "## Values\n"
    for name, schema in openrpc()["components"]["schemas"].items():
        yield f"### {name}\n\n{_sentence(schema['description'])}\n"
        yield from _fields(schema)
        yield ""


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| member | type | |", "| --- | --- | --- |")
    for name, rules in schema["properties"].items():
        optional = "" if name in schema["required"] else "may be absent"
        said = "; ".join(filter(None, (optional, _rules(rules))))
        yield f"| `{name}` | {_type(rules)} | {_cell(said)} |"


def _parameter(name: str, rules: Mapping[str, Any], required: bool) -> str:
    default = "required" if required else f"`{json.dumps(rules['default'])}`" if "default" in rules else ""
    return f"| `{name}` | {_type(rules)} | {default} | {_cell(_rules(rules))} |"


def _type(rules: Mapping[str, Any]) -> str:
    if "$ref" in rules:
        name = rules["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in rules:
        return " or ".join(map(_type, rules["anyOf"]))
    if "enum" in rules:
        return " or ".join(f"`{value}`" for value in rules["enum"])
    kinds = rules["type"] if isinstance(rules["type"], list) else [rules["type"]]
    if kinds == ["array"] and "items" in rules:
        return f"array of {_type(rules['items'])}"
    if isinstance(rules.get("additionalProperties"), Mapping):
        return f"object of {_type(rules['additionalProperties'])}"
    return " or ".join(kinds)


def _rules(rules: Mapping[str, Any]) -> str:
    said = [rules.get("description", "")]
    inner = rules if "properties" in rules else rules.get("items", {})
    if "properties" in inner:
        said.append("fields: " + ", ".join(f"`{name}`" for name in inner["properties"]))
    low, high = rules.get("minimum"), rules.get("maximum")
    if low is not None:
        said.append(f"{low:,} to {high:,}" if high is not None else f"at least {low:,}")
    if "maxItems" in rules:
        said.append(f"at most {rules['maxItems']}")
    return "; ".join(filter(None, said))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
