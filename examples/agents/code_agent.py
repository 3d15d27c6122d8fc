"""A code agent: the model answers with Python, which runs in the interpreter of a session, until it calls ``answer``.

No tools are declared, so any model that writes Python will do. Names and files stay between its programs.
``OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… MODEL=… python code_agent.py "How many …?"``
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from uuid import uuid4

from openai import OpenAI

from skillyard import SyncClient
from skillyard.client.errors import SessionNotFound

MOST_TURNS = 20
INSTRUCTIONS = """You solve tasks with Python. Reply with one block of code between ```python and ```. It runs in a
sandbox whose names and files stay between your replies; you get what it printed and the value of its last expression.
When you know the answer, let the last expression be {"answer": "..."}. You have no network."""
CODE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def ask(question: str, model: str) -> str:
    """Returns the model's answer. Raises RuntimeError after ``MOST_TURNS`` turns without one."""
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    session = f"code-agent-{uuid4().hex[:12]}"
    with SyncClient() as yard:
        try:
            for _ in range(MOST_TURNS):
                said = OpenAI().chat.completions.create(model=model, messages=messages).choices[0].message.content or ""
                messages.append({"role": "assistant", "content": said})
                code = CODE.search(said)
                if code is None:
                    seen = "there is no block of code in your reply; send one between ```python and ```"
                else:
                    run = yard.run_code(code[1], session_id=session, detail="brief")
                    value = run.output.get("result") if isinstance(run.output, dict) else None
                    if isinstance(value, dict) and "answer" in value:
                        return str(value["answer"])
                    seen = json.dumps(dict(run), ensure_ascii=False)
                messages.append({"role": "user", "content": seen})
        finally:
            with suppress(SessionNotFound):  # no code ran
                yard.end_session(session)
    raise RuntimeError(f"the model gave no answer in {MOST_TURNS} turns")


if __name__ == "__main__":
    print(ask(sys.argv[1], os.environ.get("MODEL", "gpt-5")))
