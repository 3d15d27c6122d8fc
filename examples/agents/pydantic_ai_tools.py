"""An agent of pydantic-ai whose tools are methods of skillyard. pydantic-ai keeps the loop.

``OPENAI_BASE_URL=… OPENAI_API_KEY=… MODEL=openai-chat:… python pydantic_ai_tools.py "How many …?"``
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai import Tool as ModelTool

from skillyard import Client
from skillyard.client import Tool


def offered(yard: Client, tool: Tool) -> ModelTool[None]:
    """Returns a method as a tool of pydantic-ai. A failed call makes the model try again, a few times."""

    async def call(**arguments: Any) -> str:
        answer = await yard.call_tool(tool, arguments)
        if answer.failed:
            raise ModelRetry(answer.text)
        return answer.text

    return ModelTool.from_schema(call, tool.name, tool.description, dict(tool.parameters))


async def ask(question: str, model: str) -> str:
    """Returns the model's answer."""
    async with Client() as yard:
        guide = await yard.load_skills_protocol_guide()
        agent = Agent(
            model,
            instructions=guide,
            tools=[offered(yard, tool) for tool in await yard.tools()],
        )
        return str((await agent.run(question)).output)


if __name__ == "__main__":
    print(asyncio.run(ask(sys.argv[1], os.environ.get("MODEL", "openai-chat:gpt-5"))))
