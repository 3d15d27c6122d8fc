"""Skills over MCP, with a real runtime: resources, prompts, completion, tools of their own, changes, the extension."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CompleteResult,
    NotificationParams,
    Request,
    RequestParams,
    ResourceTemplateReference,
    Result,
    TextResourceContents,
)

from skillyard.config.settings import load_settings
from skillyard.domain.principal import LOCAL, Principal, Scope
from skillyard.faces.mcp.changes import Changes
from skillyard.faces.mcp.skills import blobs_in, tool_name
from skillyard.faces.news import News
from skillyard.runtime import Runtime
from tests.faces.mcp.support import face_of

pytestmark = pytest.mark.anyio

SAY = """name = "acme.words.say"
version = "1.0.0"
description = "Says a word."
kind = "action"

[runtime]
language = "python"
entrypoint = "main.py"
export = "main"

[inputs]
type = "object"
required = ["word"]
additionalProperties = false
properties.word = { type = "string" }
"""
GUIDE = """---
name: house-style
description: How we write.
---
# House style

Short sentences.
"""


@pytest.fixture(scope="module")
def skills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("skills")
    files = {
        "acme.words.say/skill.toml": SAY,
        "acme.words.say/SKILL.md": "---\nname: say\ndescription: Says a word.\n---\n# Say\n",
        "acme.words.say/main.py": "def main(args):\n    return {'said': args['word'].upper()}\n",
        "house-style/SKILL.md": GUIDE,
        "house-style/references/words.txt": "use, not utilise\n",
    }
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


async def opened(stack: AsyncExitStack, place: Path, skills: Path, news: News | None = None, **mcp: Any) -> Runtime:
    trust = {"directories": False}
    settings = load_settings(data_dir=place / "data", skills_dirs=(skills,), mcp=mcp, trust=trust)
    return await stack.enter_async_context(Runtime(settings=settings, observer=(news or News()).observe))


@pytest.fixture(scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory, skills: Path) -> AsyncIterator[Runtime]:
    async with AsyncExitStack() as stack:
        yield await opened(stack, tmp_path_factory.mktemp("runtime"), skills, expose_skills=["acme.*"])


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[Client]:
    async with Client(face_of(runtime)[0]) as client:
        yield client


class AskParams(RequestParams):
    uri: str | None = None


class Ask(Request[AskParams, str]):
    method: str
    params: AskParams


class Open(Result, extra="allow"):
    pass


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    answer = await client.session.send_request(Ask(method=method, params=AskParams(**params)), Open)
    return answer.model_dump(by_alias=True)


async def text_of(client: Client, uri: str) -> str:
    found = (await client.read_resource(uri)).contents[0]
    assert isinstance(found, TextResourceContents)
    return found.text


async def test_each_skill_is_a_resource(client: Client) -> None:
    listed = {str(one.uri) for one in (await client.list_resources()).resources}
    assert {"skill://acme.words.say/say/SKILL.md", "skill://house-style/SKILL.md"} <= listed
    assert await text_of(client, "skill://house-style/SKILL.md") == GUIDE
    assert await text_of(client, "skill://house-style/references/words.txt") == "use, not utilise\n"


@pytest.mark.parametrize(
    "uri",
    [
        "skill://house-style/../acme.words.say/main.py",
        "skill://house-style/..%2f..%2fetc%2fpasswd",
        "skill://acme.words.say/main.py",
        "skill://nobody/SKILL.md",
        "skill://house-style",
        "blob://nobody",
        "run://run_0/log",
        "file:///etc/passwd",
    ],
)
@pytest.mark.parametrize(("mode", "code"), [("auto", -32602), ("legacy", -32002)])
async def test_nothing_else_is(runtime: Runtime, uri: str, mode: Any, code: int) -> None:
    async with Client(face_of(runtime)[0], mode=mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
    assert refused.value.error.code == code


async def test_blobs_and_logs_are_resources_of_their_owner(runtime: Runtime) -> None:
    code = "print('in the log')\ndef main(args):\n    open('/workspace/out/a.csv', 'w').write('a,b')\n    return {}"
    bob = Principal("bob", frozenset({Scope.EXECUTE, Scope.BLOBS}))
    async with Client(face_of(runtime)[0]) as client, Client(face_of(runtime, bob)[0]) as other:
        done = await client.call_tool("run_code", {"language": "python", "code": code})
        assert not done.is_error, done
        links = [each for each in done.content if each.type == "resource_link"]
        log = f"run://{done.structured_content['run_id']}/log"
        assert await text_of(client, str(links[0].uri)) == "a,b"
        assert await text_of(client, log) == "in the log\n"
        for uri in (str(links[0].uri), log):
            with pytest.raises(MCPError):
                await other.read_resource(uri)


async def test_instruction_skills_are_prompts(client: Client) -> None:
    prompts = (await client.list_prompts()).prompts
    assert "house-style" in [prompt.name for prompt in prompts]
    assert "acme.words.say" not in [prompt.name for prompt in prompts]
    got = await client.get_prompt("house-style", {"task": "Write a letter."})
    content = got.messages[0].content
    assert content.type == "text"
    assert "Short sentences." in content.text
    assert "references/words.txt" in content.text
    assert content.text.endswith("The task: Write a letter.")
    with pytest.raises(MCPError, match="not an instruction skill"):
        await client.get_prompt("acme.words.say")


async def completed(client: Client, part: str, value: str, **known: str) -> list[str]:
    ref = ResourceTemplateReference(uri="skill://{name}/{+path}")
    done: CompleteResult = await client.complete(ref, {"name": part, "value": value}, context_arguments=known or None)
    return done.completion.values


async def test_names_and_paths_are_completed(client: Client) -> None:
    assert await completed(client, "name", "acme.") == ["acme.words.say"]
    assert await completed(client, "path", "ref", name="house-style") == ["references/words.txt"]
    assert await completed(client, "path", "", name="nobody") == []


async def test_a_skill_is_a_tool_of_its_own(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert [name for name in tools if name.startswith("skill_")] == ["skill_acme_words_say"]
    assert tools["skill_acme_words_say"].input_schema["required"] == ["word"]
    said = await client.call_tool("skill_acme_words_say", {"word": "hi"})
    assert said.structured_content["output"] == {"said": "HI"}
    wrong = await client.call_tool("skill_acme_words_say", {"word": 3})
    assert wrong.is_error
    assert "word" in str(wrong.content)


async def test_only_approved_skills_are_tools_where_the_settings_say_so(tmp_path: Path, skills: Path) -> None:
    async with AsyncExitStack() as stack:
        runtime = await opened(stack, tmp_path, skills, expose_skills="approved")
        client = await stack.enter_async_context(Client(face_of(runtime)[0], mode="legacy"))
        before = {tool.name for tool in (await client.list_tools()).tools}
        await runtime.call("catalogue.approve", {"name": "acme.words.say"})
        after = {tool.name for tool in (await client.list_tools()).tools}
    assert "skill_acme_words_say" not in before
    assert "skill_acme_words_say" in after


async def test_a_token_that_may_not_execute_has_no_such_tools(runtime: Runtime) -> None:
    reader = Principal("reader", frozenset({Scope.DISCOVER}))
    async with Client(face_of(runtime, reader)[0]) as client:
        assert not [tool.name for tool in (await client.list_tools()).tools if tool.name.startswith("skill_")]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("skill_acme_words_say", {"word": "hi"})


async def test_the_skills_extension_lists_every_file_with_its_digest(client: Client, skills: Path) -> None:
    listed = {each["uri"]: each for each in (await ask(client, "skills/list"))["skills"]}
    entry = listed["skill://house-style/SKILL.md"]
    assert entry["frontmatter"] == {"name": "house-style", "description": "How we write."}
    digest = hashlib.sha256(GUIDE.encode()).hexdigest()
    assert {"uri": entry["uri"], "digest": f"sha256:{digest}", "size": len(GUIDE.encode())} in entry["resources"]
    assert len(entry["resources"]) == 2
    got = await ask(client, "skills/get", uri=entry["uri"])
    assert (got["skill"], got["resultType"], got["cacheScope"]) == (entry, "complete", "private")
    folder = await ask(client, "resources/directory/read", uri="skill://house-style")
    assert [(each["name"], each.get("mimeType")) for each in folder["resources"]] == [
        ("SKILL.md", None),
        ("references", "inode/directory"),
    ]
    for wrong in ("skill://nobody/SKILL.md", "skill://house-style/references/words.txt"):
        with pytest.raises(MCPError) as refused:
            await ask(client, "skills/get", uri=wrong)
        assert refused.value.error.code == -32602


async def test_the_extension_begins_with_its_revision(runtime: Runtime) -> None:
    async with Client(face_of(runtime)[0], mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await ask(client, "skills/list")
    assert refused.value.error.code == -32601


async def test_clients_hear_of_changes(tmp_path: Path, skills: Path) -> None:
    news = News()
    async with AsyncExitStack() as stack:
        runtime = await opened(stack, tmp_path, skills, news)
        server, parts = face_of(runtime, news=news)
        heard = anyio.Event()

        async def hear(message: Any) -> None:
            if "ToolListChanged" in type(message).__name__:
                heard.set()

        old = await stack.enter_async_context(Client(server, mode="legacy", message_handler=hear))
        new = await stack.enter_async_context(Client(server))
        await old.list_tools()
        with anyio.fail_after(20):
            async with new.listen(tools_list_changed=True) as changes:
                await runtime.call("catalogue.approve", {"name": "acme.words.say"})
                async for _ in changes:
                    break
            await heard.wait()
        parts.changes.close()


async def test_no_principal_keeps_others_from_listening(tmp_path: Path, skills: Path) -> None:
    """Nor from hearing. The principal with the most sessions loses one of them first."""
    async with AsyncExitStack() as stack:
        runtime = await opened(stack, tmp_path, skills, sessions=3, sessions_each=2)
        server, parts = face_of(runtime)
        greedy = await stack.enter_async_context(Client(server))
        for _ in range(2):
            await stack.enter_async_context(greedy.listen(tools_list_changed=True))
        with pytest.raises(MCPError, match="listen as often as they may"):
            await stack.enter_async_context(greedy.listen(tools_list_changed=True))
        names = iter(["ann", "bob", "bob", "bob"])
        changes = Changes(parts.changes._revision, lambda _: replace(LOCAL, name=next(names)), 3, 2)
        for number in range(4):
            told: Any = SimpleNamespace(
                request=SimpleNamespace(headers={"mcp-session-id": f"s{number}"}), session=number
            )
            await changes.initialized(told, NotificationParams())
        assert list(changes._sessions) == ["s0", "s2", "s3"]
        parts.changes.close()


def test_names_of_tools_fit_every_model() -> None:
    long = "a." * 60 + "b"
    assert tool_name("acme.words") == "skill_acme_words"
    assert len(tool_name(long)) == 64
    assert tool_name(long) != tool_name(long + "c")
    assert len({tool_name(name) for name in ("a.b", "a_b", "a-b", "aéb", "aüb")}) == 5


def test_blobs_that_arguments_mention_are_found() -> None:
    value = {"a": "blob:1", "b": ["blob:2", {"c": "blob:1"}], "d": "see blob:3", "e": 4}
    assert sorted(blobs_in(value)) == ["blob:1", "blob:2"]
