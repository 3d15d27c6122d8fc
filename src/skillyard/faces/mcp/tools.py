"""Methods of the table as tools, and the tools that one caller is offered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, Tool, ToolAnnotations

from skillyard.config.faces.mcp import PROTOCOL_TOOLS, McpSettings
from skillyard.domain.errors import Forbidden
from skillyard.domain.principal import Principal
from skillyard.engine.method import Method
from skillyard.engine.table import METHODS

GROUP = "skills."
"""Beside the protocol's methods, those that a profile can offer."""
DESCRIPTIONS = {
    "list_skills": "List the skills that can be used here, by name and page. Begin here when a task may be covered by a"
    " skill: detail='summary' adds what each one does. A skill of kind 'action' is run with execute_skill, one of kind"
    " 'instruction' is read with describe_skill and followed.",
    "describe_skill": "Read one skill before using it: its parameters, its instructions (SKILL.md) and the names of its"
    " files. detail='full' gives the whole text.",
    "read_skill_file": "Read one file of a skill, such as a reference that its SKILL.md points to. Long files come in"
    " parts: go on with next_offset.",
    "load_skills_protocol_guide": "Read how skills, runs and blobs work together here. Read it once, before the first"
    " run.",
    "execute_skill": "Run an action skill in a fresh sandbox. args must fit the skill's input schema (describe_skill);"
    " blobs that args mention must be listed in input_blobs. The answer has output, and files as blob ids. A failed run"
    " says why in error and logs_preview: mend the arguments and call again.",
    "run_code": "Run Python in a fresh sandbox: no network, no files of earlier runs. Define main(args) and return a"
    " dict of at most 4096 bytes of JSON; write larger results to /workspace/out, from where they come back as blobs"
    " (images are shown). mount_skills makes skills importable as skills.<name>. With session_id the names of earlier"
    " cells are kept. What is printed comes in logs_preview.",
    "create_blob": "Store data once and pass its id around instead of the content. Give the id to runs in input_blobs;"
    " they read it as the file /blobs/<id>.",
    "read_blob": "Look at a blob: its first bytes (sample_head), its last (sample_tail), or all of it (full). Sample"
    " large ones, and process them with run_code.",
    "skills.run_cmd": "Run a shell command in a skill's directory, in a fresh sandbox or in a session whose files stay."
    " A non-zero exit code is an answer: read stderr. Name the files to keep in outputs.",
    "skills.run_cmd_async": "Start a shell command that takes long, and get its task id at once. Look with"
    " skills.task_watch, which waits for news.",
    "skills.task_watch": "Wait for news of a task: its state, and the output since the last look.",
}
"""Texts for models about the use of a tool. Other methods have the sentence of the table."""

_ENDS = ("cancel", "end_session", "delete", "disable", "set_version", "upload", "open_service")
Names = Literal["underscores", "dots"]


def shown_name(name: str, names: Names) -> str:
    return name.replace(".", "_") if names == "underscores" else name


def offered(settings: McpSettings, principal: Principal) -> dict[str, Method[Any]]:
    """Returns the methods that are tools for the principal, in the order of the table.

    A profile chooses among the protocol's and ``skills.*``; the settings choose for callers without one.
    """
    return {
        name: method
        for name, method in METHODS.items()
        if _is_chosen(settings, principal, name) and _in_scope(principal, method)
    }


def _is_chosen(settings: McpSettings, principal: Principal, name: str) -> bool:
    if principal.profile is not None:
        return (name in PROTOCOL_TOOLS or name.startswith(GROUP)) and principal.may_call(name)
    return any(fnmatchcase(name, pattern) for pattern in settings.tools)


def _in_scope(principal: Principal, method: Method[Any]) -> bool:
    try:
        principal.require(method.scope, method.also)
    except Forbidden:
        return False
    return True


def find(methods: Mapping[str, Method[Any]], called: str) -> Method[Any] | None:
    """Returns the method of a tool's name, with dots or with underscores."""
    found = methods.get(called)
    return found or next((methods[name] for name in methods if name.replace(".", "_") == called), None)


def unknown(called: str, known: Iterable[str]) -> MCPError:
    """Returns the error for a tool that the caller is not offered."""
    names, shown = sorted(known), called[:64]  # to compare a name of megabytes would hold up everybody
    near = get_close_matches(shown, names, n=1)
    hint = f"; did you mean '{near[0]}'" if near else ""
    return MCPError(INVALID_PARAMS, f"Unknown tool: '{shown}'{hint}; offered are {', '.join(names[:64])}")


def tool_of(method: Method[Any], names: Names) -> Tool:
    """Returns a method as a tool."""
    return Tool(
        name=shown_name(method.name, names),
        title=method.name.removeprefix(GROUP).replace("_", " ").capitalize(),
        description=DESCRIPTIONS.get(method.name, method.doc),
        input_schema=plain(method.params),
        output_schema=plain(method.result),
        annotations=annotations_of(method),
    )


def annotations_of(method: Method[Any]) -> ToolAnnotations:
    changes = method.runs or not method.repeatable or method.name.endswith(_ENDS)
    return ToolAnnotations(
        read_only_hint=not changes,
        destructive_hint=method.runs or method.name.endswith(_ENDS),
        idempotent_hint=method.repeatable,
        open_world_hint=method.runs,
    )


def plain(schema: Any) -> Any:
    """Returns a schema of the table in plain JSON values."""
    if isinstance(schema, Mapping):
        return {name: plain(value) for name, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [plain(value) for value in schema]
    return schema
