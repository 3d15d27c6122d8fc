"""An MCP server with the tools that the suite of conformance asks for by name, of the standard library alone."""

import base64
import json
import struct
import sys
import zlib
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMA = {
    "$schema": DRAFT,
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def pixel() -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def silence() -> str:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    data = b"WAVE" + form + struct.pack("<4sI", b"data", 2) + b"\x80\x80"
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(data)) + data).decode()


IMAGE = {"type": "image", "data": pixel(), "mimeType": "image/png"}
CONTENT: dict[str, list[dict[str, Any]]] = {
    "test_simple_text": [{"type": "text", "text": "This is a simple text response for testing."}],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": silence(), "mimeType": "audio/wav"}],
    "test_error_handling": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
    "json_schema_2020_12_tool": [{"type": "text", "text": "ok"}],
}


def result(method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        name = {"name": "prepared", "version": "1"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": name}
    if method == "tools/list":
        schemas = {"json_schema_2020_12_tool": SCHEMA}
        return {"tools": [{"name": each, "inputSchema": schemas.get(each, {"type": "object"})} for each in CONTENT]}
    if method == "tools/call":
        return {"content": CONTENT[given["name"]], "isError": given["name"] == "test_error_handling"}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result(message["method"], message.get("params", {}))}
        print(json.dumps(answer), flush=True)
