"""The OpenRPC document of the method table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skillyard._version import __version__
from skillyard.engine.method import Method

_COMMON_ERRORS = {-32602: "InvalidParams", -32001: "Unauthenticated", -32003: "Forbidden", -32603: "InternalError"}


def document(methods: Iterable[Method[Any]]) -> dict[str, Any]:
    """Returns the document as JSON. Values that several results hold stand in ``components`` by their titles."""
    shapes: dict[str, Any] = {}
    described = [_method(method, shapes) for method in methods]
    return {
        "openrpc": "1.3.2",
        "info": {"title": "skillyard", "version": __version__, "license": {"name": "Apache-2.0"}},
        "methods": described,
        "components": {
            "schemas": dict(sorted(shapes.items())),
            "errors": {name: {"code": code, "message": name} for code, name in _COMMON_ERRORS.items()},
        },
    }


def _method(method: Method[Any], shapes: dict[str, Any]) -> dict[str, Any]:
    required = method.params["required"]
    params = [
        {"name": name, "required": name in required, "schema": schema}
        for name, schema in method.params["properties"].items()
    ]
    params.sort(key=lambda param: not param["required"])  # OpenRPC wants the required ones first
    return {
        "name": method.name,
        "summary": method.doc,
        "paramStructure": "by-name",
        "params": params,
        "result": {"name": "result", "schema": _told_once(method.result, shapes)},
        "errors": [
            *({"$ref": f"#/components/errors/{name}"} for name in _COMMON_ERRORS.values()),
            *({"code": error.code, "message": error.type} for error in method.errors),
        ],
        "examples": [
            {
                "name": "example",
                "params": [{"name": name, "value": value} for name, value in method.example.items()],
            }
        ],
        "x-scopes": sorted({method.scope, *method.also}),
        "x-repeatable": method.repeatable,
    }


def _told_once(schema: Any, shapes: dict[str, Any]) -> Any:
    """Returns the schema with references in the place of titled ones, which go into ``shapes``."""
    if isinstance(schema, (list, tuple)):
        return [_told_once(item, shapes) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    told = {name: _told_once(value, shapes) for name, value in schema.items()}
    title = told.get("title")
    if not isinstance(title, str):
        return told
    if "null" in told["type"]:
        bare = {**told, "type": "object"}
        shapes.setdefault(title, bare)
        return {"anyOf": [{"$ref": f"#/components/schemas/{title}"}, {"type": "null"}]}
    shapes.setdefault(title, told)
    return {"$ref": f"#/components/schemas/{title}"}
