"""A script of a skill, executed inside a sandbox with the skill mounted."""

from __future__ import annotations

from typing import Any

from skillyard.domain.skill.example import Example

CODE = '''\
import os
import subprocess
import sys

from runtime import blobs


def main(args):
    script = os.path.join(os.environ["SKILLS_DIR"], args["skill"], args["script"])
    with open(script, "rb") as stream:
        own = stream.read(2) == b"#!" and os.access(script, os.X_OK) and not script.endswith(".py")
    argv = [_path(args["blobs"], text) for text in args["argv"]]
    command = [script] if own else [sys.executable if script.endswith(".py") else "/bin/sh", script]
    done = subprocess.run([*command, *argv], input=args["stdin"].encode(), capture_output=True)
    said = {"stdout": done.stdout.decode(errors="replace"), "stderr": done.stderr.decode(errors="replace")}
    sys.stdout.write(said["stdout"])
    sys.stderr.write(said["stderr"])
    return {"exit": done.returncode, **said}


def _path(ids, text):
    """{key} stands for the file of the blob of that key."""
    for key, blob_id in ids.items():
        text = text.replace("{" + key + "}", str(blobs.path(blob_id)))
    return text
'''
"""What run_code runs. Python files run under the run's own interpreter, others by their first line, or the shell."""


def script_args(skill: str, example: Example, ids: dict[str, str]) -> dict[str, Any]:
    return {"skill": skill, "script": example.script, "argv": list(example.argv), "stdin": example.stdin, "blobs": ids}
