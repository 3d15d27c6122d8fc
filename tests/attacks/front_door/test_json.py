"""Bodies that are no JSON, no JSON-RPC, or too much of it: refused with the code of the protocol, repeating nothing."""

from __future__ import annotations

import json
import zlib

import pytest

from tests.attacks.front_door.conftest import Door

CALL = b'{"jsonrpc":"2.0","id":1,"method":"list_skills","params":%s}'
TEXT = CALL % b"{}"

NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \n\t ",
    "half": TEXT[:-1],
    "two values": TEXT + TEXT,
    "a comment": TEXT + b"// x",
    "single quotes": TEXT.replace(b'"', b"'"),
    "a trailing comma": b'{"jsonrpc":"2.0","id":1,"method":"list_skills",}',
    "UTF-16": TEXT.decode().encode("utf-16"),
    "UTF-16 without a mark": TEXT.decode().encode("utf-16-le"),
    "UTF-32": TEXT.decode().encode("utf-32"),
    "UTF-7": TEXT.decode().replace("{", "+AHs-").encode(),
    "a byte order mark": b"\xef\xbb\xbf" + TEXT,
    "an overlong form": CALL % b'{"namespace":"\xc0\xae\xc0\xae"}',
    "half a character": CALL % b'{"namespace":"\xed\xa0\x80"}',
    "half an escape": CALL % rb'{"namespace":"\ud800"}',
    "halves in the wrong order": CALL % rb'{"namespace":"\udc00\ud800"}',
    "half an escape as a key": CALL % rb'{"\ud800":1}',
    "a byte that is none": CALL % b'{"namespace":"\xff"}',
    "a control character": CALL % b'{"namespace":"\x01"}',
    "NaN": CALL % b'{"limit":NaN}',
    "Infinity": CALL % b'{"limit":-Infinity}',
    "a float that overflows": CALL % b'{"limit":1e400}',
    "a float with many digits": CALL % (b'{"limit":1' + b"0" * 100_000 + b".5e99}"),
    "many digits": CALL % (b'{"limit":' + b"9" * 400_000 + b"}"),
    "many digits in the id": TEXT.replace(b'"id":1', b'"id":' + b"7" * 5_000),
    "a leading zero": CALL % b'{"limit":01}',
    "hexadecimal": CALL % b'{"limit":0x10}',
    "one name twice": b'{"jsonrpc":"2.0","id":1,"method":"list_skills","method":"run_code"}',
    "one name twice, once escaped": rb'{"jsonrpc":"2.0","id":1,"method":"list_skills","meth\u006fd":"run_code"}',
    "one name twice, deep inside": CALL % b'{"a":[{"b":{"c":1,"c":2}}]}',
    "deep arrays": CALL % (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": CALL % (b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "deep and never closed": b"[" * 1_000_000,
    "just too deep": CALL % (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}"),
    "too many values": CALL % (b'{"a":[' + b"1," * 1_500_000 + b"1]}"),
    "too many empty objects": CALL % (b'{"a":[' + b"{}," * 1_100_000 + b"{}]}"),
    "compressed": zlib.compress(TEXT),
    "a form": b"jsonrpc=2.0&method=list_skills",
    "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
    "a pickle": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}

NO_REQUEST: dict[str, bytes] = {
    "null": b"null",
    "a string": b'"list_skills"',
    "a number": b"1",
    "an empty batch": b"[]",
    "a batch of seventeen": b"[" + b",".join([TEXT] * 17) + b"]",
    "a batch of a hundred thousand": b"[" + b",".join([b"1"] * 100_000) + b"]",
    "no version": b'{"id":1,"method":"list_skills"}',
    "version 1": b'{"jsonrpc":"1.0","id":1,"method":"list_skills"}',
    "a number as version": b'{"jsonrpc":2.0,"id":1,"method":"list_skills"}',
    "no method": b'{"jsonrpc":"2.0","id":1}',
    "a list as method": b'{"jsonrpc":"2.0","id":1,"method":["list_skills"]}',
    "an object as id": b'{"jsonrpc":"2.0","id":{},"method":"list_skills"}',
    "true as id": b'{"jsonrpc":"2.0","id":true,"method":"list_skills"}',
    "a string as params": CALL % b'"x"',
    "null as params": CALL % b"null",
    "another member": b'{"jsonrpc":"2.0","id":1,"method":"list_skills","__proto__":{}}',
}


@pytest.mark.parametrize("name", NO_JSON)
def test_no_json(door: Door, name: str) -> None:
    response = door.rpc(NO_JSON[name])
    assert (response.status, response.error["code"]) == (400, -32700)
    assert response.json["id"] is None
    assert len(response.body) < 400


@pytest.mark.parametrize("name", NO_REQUEST)
def test_no_request(door: Door, name: str) -> None:
    response = door.rpc(NO_REQUEST[name])
    assert (response.status, response.error["code"]) == (400, -32600)
    assert len(response.body) < 400


@pytest.mark.parametrize(
    "params",
    [
        b"[]",
        b"[1,2]",
        b'{"limit":%s}' % (b"9" * 4300),
        b'{"limit":-%s}' % (b"9" * 4000),
        b'{"limit":1e308}',
        b'{"limit":true}',
        b'{"limit":5e-324}',
        b'{"limit":"50"}',
        b'{"limit":[50]}',
        b'{"namespace":{"$ne":null}}',
        b'{"%s":1}' % (b"x" * 1_000_000),
        b'{"cursor":"%s"}' % (b"A" * 1_000_000),
        b'{"cursor":"\xc3\xa9"}',
        b'{"cursor":"="}',
        b'{"cursor":"AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}',
    ],
    ids=lambda text: text[:24].decode(errors="replace"),
)
def test_parameters_that_break_a_rule(door: Door, params: bytes) -> None:
    error = door.rpc(CALL % params).error
    assert error["code"] == -32602
    assert error["message"].startswith(f"{error['data']['field']}: " if "field" in error["data"] else "params")
    assert len(json.dumps(error)) < 600


LIMITS = ("timeout_ms", "memory_mb", "cpus", "pids", "disk_mb")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [b"9" * 4000, b"-" + b"9" * 400, b"1e308", b"-1e308", b"5e-324", b"0", b"-0.0"])
def test_a_limit_of_any_size(door: Door, limit: str, value: bytes) -> None:
    params = b'{"language":"python","code":"def main(args): ...","limits":{"%s":%s}}' % (limit.encode(), value)
    error = door.rpc((CALL % params).replace(b"list_skills", b"run_code")).error
    assert (error["code"], error["data"]["field"]) == (-32602, f"limits.{limit}")
    assert "(got " in error["message"]
    assert value[:20] not in error["message"].encode() or len(value) < 20


def test_the_largest_number_there_is_comes_back_as_it_went(door: Door) -> None:
    answer = door.rpc(TEXT.replace(b'"id":1', b'"id":' + b"7" * 4300))
    assert b'"id":' + b"7" * 4300 in answer.body


def test_a_batch_answers_each_entry_by_itself(door: Door) -> None:
    entries = [TEXT, b"1", b'{"jsonrpc":"2.0","id":"n","method":"nothing"}', b"[]", TEXT.replace(b'"id":1', b'"id":2')]
    answers = door.rpc(b"[" + b",".join(entries) + b"]").json
    codes = [answer.get("error", {}).get("code", 0) for answer in answers]
    assert codes == [0, -32600, -32601, -32600, 0]
    assert [answer["id"] for answer in answers] == [1, None, "n", None, 2]


def test_a_batch_of_notifications_is_answered_with_nothing(door: Door) -> None:
    note = b'{"jsonrpc":"2.0","method":"list_skills"}'
    response = door.rpc(b"[" + b",".join([note] * 16) + b"]")
    assert (response.status, response.body) == (204, b"")


def test_a_body_beyond_the_limit_is_not_read(door: Door) -> None:
    head = door.head("POST /rpc", "Content-Type: application/json", f"Content-Length: {32 * 1024 * 1024 + 1}")
    assert door.ask(head).error["data"]["type"] == "PayloadTooLarge"


def test_the_largest_body_is_read(door: Door) -> None:
    body = CALL % (b'{"namespace":"' + b"x" * (32 * 1024 * 1024 - len(CALL) - 14) + b'"}')
    error = door.rpc(body[: 32 * 1024 * 1024]).error
    assert (error["code"], error["data"]["field"]) == (-32602, "namespace")
