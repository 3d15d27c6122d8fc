"""``python -m examples.workflow``: upload, load, activate, a command, a task, a job, and their artifacts.

A server of its own does the work, with the settings of ``service.toml``. The agent's token has the profile of
``skill_orchestrator_agent.yaml`` and no other tool.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from skillyard import SyncClient
from skillyard.domain.errors import Forbidden
from skillyard.server_process import ServerProcess

HERE = Path(__file__).parent
NAME, PROFILE = "acme-words", "orchestrator"
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
SETTINGS = {
    "SKILLYARD_CONFIG": str(HERE / "service.toml"),
    "SKILLYARD_PROFILES": json.dumps({PROFILE: {"file": str(HERE / "skill_orchestrator_agent.yaml")}}),
}


def main() -> None:
    """Does all of it in a directory that is thrown away."""
    with (
        tempfile.TemporaryDirectory(prefix="skillyard-workflow-") as place,
        ServerProcess(Path(place) / "data", settings=SETTINGS) as server,
    ):
        work(server)


def work(server: ServerProcess) -> None:
    """Uploads the skill as the owner, works with it as the agent, and reads the artifacts."""
    with SyncClient(data_dir=server.data_dir) as owner:
        uploaded = owner.skills_upload(archive())
        print(f"uploaded {uploaded['skill_name']} {uploaded['version']}")
        with SyncClient(server.url, agent_token(server)) as agent:
            artifacts = orchestrate(agent)
            job_id = start_job(agent)
        job = owner.job_watch(job_id, timeout_sec=120)
        steps = ", ".join(f"{step['name']} {step['status']}" for step in job["steps"])
        print(f"job {job['status']}: {steps}: {job['steps'][-1]['stdout_tail'].strip()}")
        for artifact in artifacts:
            content = owner.read_blob(artifact["artifact_id"])["preview"]
            print(f"artifact {artifact['filename']}, {artifact['size']} bytes: {content.split()}")


def orchestrate(agent: SyncClient) -> list[dict[str, Any]]:
    """Returns the artifacts of the agent's work."""
    loaded = agent.skills_load(NAME)
    ready = agent.skills_activate(NAME)
    print(f"loaded {loaded['path']} of {loaded['bytes']} bytes; {ready['mode']} in {ready['local_dir']}")

    bring = f"printf %s '{TEXT}' > text.txt"
    short = agent.run_cmd(
        NAME, f"{bring}; scripts/count.sh text.txt > counts.txt; head -n 1 counts.txt", outputs=[{"path": "counts.txt"}]
    )
    print(f"run_cmd {short['status']} with exit code {short['exit_code']}: {short['stdout'].strip()}")

    task = agent.run_cmd_async(NAME, f"{bring}; scripts/lengths.sh text.txt", outputs=[{"path": "lengths.csv"}])
    ended = agent.task_watch(task["task_id"], timeout_sec=120)
    print(f"task {ended['status']} with exit code {ended['exit_code']}: {ended['stdout_tail'].strip()}")

    try:
        agent.read_blob(short["created_artifacts"][0]["artifact_id"])
    except Forbidden as refusal:
        print(f"refused: {refusal}")
    return [*short["created_artifacts"], *ended["created_artifacts"]]


def start_job(agent: SyncClient) -> str:
    """Starts two steps in one session. The second one gets a file of the first as an input."""
    steps = [
        {"name": "bring", "command": f"printf '%s\\n' '{TEXT}' > text.txt", "outputs": [{"path": "text.txt"}]},
        {
            "name": "count",
            "command": "wc -w < copy.txt",
            "inputs": [{"artifact_id": "step:bring/text.txt", "mount_path": "copy.txt"}],
        },
    ]
    return str(agent.start_job(NAME, "words", steps)["job_id"])


def archive() -> bytes:
    """Returns the skill as a tar.gz."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        tar.add(HERE / "skill", NAME)
    return data.getvalue()


def agent_token(server: ServerProcess) -> str:
    """Returns a token that has the profile's tools alone."""
    command = ["token", "create", "analyst", "--scopes", "discover,execute,run_code,blobs", "--profile", PROFILE]
    asked = [sys.executable, "-m", "skillyard", *command, "--data-dir", str(server.data_dir)]
    return subprocess.run(
        asked, check=True, capture_output=True, text=True, env={**os.environ, **SETTINGS}
    ).stdout.strip()


if __name__ == "__main__":
    main()
