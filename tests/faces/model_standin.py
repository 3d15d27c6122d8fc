"""A stand-in for models: it holds requests to the forms of OpenAI and Anthropic, and answers by a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """The model calls a tool."""

    tool: str
    arguments: Any


Turn = Call | Callable[[str], str]
"""A call, or the words of the model, made of the last thing that it was told."""


@dataclass
class Script:
    """Turns of the model, in order. ``told`` has what each request told it last, ``tools`` what it was offered."""

    turns: Sequence[Turn]
    told: list[str] = field(default_factory=list)
    tools: list[set[str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def next(self, told: str, tools: dict[str, Json]) -> tuple[int, Turn]:
        for schema in tools.values():
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object", "both APIs take objects"
        self.told.append(told)
        self.tools.append(set(tools))
        return len(self.told), self.turns[len(self.told) - 1]


def openai(body: Json, script: Script) -> Json:
    """Answers ``POST /v1/chat/completions``."""
    messages = body["messages"]
    assert messages[0]["role"] == "system"
    for before, message in pairwise(messages):
        if message["role"] == "tool":
            asked = before.get("tool_calls") or [{"id": before.get("tool_call_id")}]
            assert message["tool_call_id"] in {call["id"] for call in asked}
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools", ())}
    at, turn = script.next(_text(messages[-1]["content"]), tools)
    said: Json = {"role": "assistant", "content": None}
    if isinstance(turn, Call):
        arguments = turn.arguments if isinstance(turn.arguments, str) else json.dumps(turn.arguments)
        function = {"name": turn.tool, "arguments": arguments}
        said["tool_calls"] = [{"id": f"call_{at}", "type": "function", "function": function}]
    else:
        said["content"] = turn(script.told[-1])
    reason = "tool_calls" if isinstance(turn, Call) else "stop"
    return {
        "id": f"chatcmpl-{at}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": said, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def anthropic(body: Json, script: Script) -> Json:
    """Answers ``POST /v1/messages``."""
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert body["max_tokens"] > 0
    tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools", ())}
    last = body["messages"][-1]["content"]
    at, turn = script.next(last if isinstance(last, str) else _text(last[0]["content"]), tools)
    if isinstance(turn, Call):
        content: Json = {"type": "tool_use", "id": f"toolu_{at}", "name": turn.tool, "input": turn.arguments}
    else:
        content = {"type": "text", "text": turn(script.told[-1])}
    return {
        "id": f"msg_{at}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [content],
        "stop_reason": "tool_use" if isinstance(turn, Call) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


_ANSWERS = {"/v1/chat/completions": openai, "/v1/messages": anthropic}


@contextmanager
def standing_in(script: Script) -> Iterator[str]:
    """Yields the URL of a stand-in on loopback. It answers a request of a wrong form with 400, and keeps the fault."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                status, answer = 200, _ANSWERS[self.path](body, script)
            except Exception as fault:  # noqa: BLE001 - a test reads all of them
                script.faults.append(repr(fault))
                status, answer = 400, {"error": {"message": repr(fault), "type": "invalid_request_error"}}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
