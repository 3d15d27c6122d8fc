"""A tool-calling loop with the Anthropic SDK: the model calls methods of skillyard until it has an answer.

``ANTHROPIC_API_KEY=… MODEL=… python anthropic_tools.py "How many …?"``
"""

from __future__ import annotations

import os
import sys
from typing import Any

from anthropic import Anthropic

from skillyard import SyncClient

MOST_TURNS, MOST_TOKENS = 20, 4096


def ask(question: str, model: str) -> str:
    """Returns the model's answer. Raises RuntimeError after ``MOST_TURNS`` turns without one."""
    with SyncClient() as yard:
        tools = {tool.name: tool for tool in yard.tools()}
        offered = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in tools.values()
        ]
        guide = yard.load_skills_protocol_guide()
        messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
        for _ in range(MOST_TURNS):
            said = Anthropic().messages.create(
                model=model, max_tokens=MOST_TOKENS, system=guide, messages=messages, tools=offered
            )
            if said.stop_reason != "tool_use":
                return "".join(block.text for block in said.content if block.type == "text")
            messages.append({"role": "assistant", "content": [block.model_dump() for block in said.content]})
            results = []
            for block in said.content:
                if block.type != "tool_use":
                    continue
                if block.name in tools:
                    answer = yard.call_tool(tools[block.name], block.input)
                    text, failed = answer.text, answer.failed
                else:
                    text, failed = f"there is no tool {block.name!r}; the tools are {', '.join(tools)}", True
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": text, "is_error": failed})
            messages.append({"role": "user", "content": results})
    raise RuntimeError(f"the model gave no answer in {MOST_TURNS} turns")


if __name__ == "__main__":
    print(ask(sys.argv[1], os.environ.get("MODEL", "claude-sonnet-4-5")))
