"""A stand-in for a model behind OpenAI's API: it calls one tool, then repeats in its answer what the tool said."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_RESPONSE_USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
}


@contextmanager
def model(shell: list[str], function: tuple[str, dict[str, Any]]) -> Iterator[str]:
    """Yields the base URL of a model that runs ``shell`` by Responses, or calls ``function`` by Chat Completions."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = _response(asked, shell) if self.path.endswith("/responses") else _completion(asked, function)
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def _response(asked: dict[str, Any], commands: list[str]) -> dict[str, Any]:
    said = [each for each in asked["input"] if isinstance(each, dict) and each.get("type") == "shell_call_output"]
    if said:
        text = "".join(part["stdout"] for each in said for part in each["output"])
        content = [{"type": "output_text", "text": f"I read: {text}", "annotations": []}]
        output: dict[str, Any] = {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    else:
        action = {"commands": commands, "timeout_ms": 60_000, "max_output_length": None}
        output = {"type": "shell_call", "id": "s1", "call_id": "c1", "status": "completed", "action": action}
    return {
        "id": "r1",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": asked["model"],
        "output": [output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _RESPONSE_USAGE,
    }


def _completion(asked: dict[str, Any], function: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    said = [each["content"] for each in asked["messages"] if each["role"] == "tool"]
    message: dict[str, Any] = {"role": "assistant", "content": f"It printed: {said[-1]}" if said else None}
    if not said:
        name, arguments = function
        call = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
    choice = {"index": 0, "finish_reason": "stop" if said else "tool_calls", "message": message}
    told = {"id": "c", "object": "chat.completion", "created": 0, "model": asked["model"]}
    return {**told, "choices": [choice], "usage": _USAGE}
