"""A tool-calling loop with the OpenAI SDK: the model calls methods of skillyard until it has an answer.

``OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… MODEL=… python openai_tools.py "How many …?"``
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

from skillyard import SyncClient

MOST_TURNS = 20


def ask(question: str, model: str) -> str:
    """Returns the model's answer. Raises RuntimeError after ``MOST_TURNS`` turns without one."""
    with SyncClient() as yard:
        tools = {tool.name: tool for tool in yard.tools()}
        offered = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools.values()
        ]
        messages = [
            {"role": "system", "content": yard.load_skills_protocol_guide()},
            {"role": "user", "content": question},
        ]
        for _ in range(MOST_TURNS):
            said = OpenAI().chat.completions.create(model=model, messages=messages, tools=offered).choices[0].message
            if not said.tool_calls:
                return said.content or ""
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls:
                if call.function.name in tools:
                    text = yard.call_tool(tools[call.function.name], call.function.arguments).text
                else:
                    text = f"there is no tool {call.function.name!r}; the tools are {', '.join(tools)}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    raise RuntimeError(f"the model gave no answer in {MOST_TURNS} turns")


if __name__ == "__main__":
    print(ask(sys.argv[1], os.environ.get("MODEL", "gpt-5")))
