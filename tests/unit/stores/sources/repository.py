"""Git checkouts to install from."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

FILES: Mapping[str, str] = {
    "README.md": "A repository.\n",
    "skills/words/SKILL.md": "---\nname: words\ndescription: Says words.\nversion: 1.0.0\n---\n\n# Words\n",
    "skills/words/code/run.sh": "#!/bin/sh\necho hello\n",
    "skills/words/é/日本.txt": "x\n",
    "skills/words/long/" + "n" * 150: "y\n",
    "skills/other/SKILL.md": "---\nname: other\ndescription: Another.\n---\n\n# Other\n",
}


def git(home: Path, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    settings = ("user.email=a@example.com", "user.name=a", "commit.gpgsign=false", "protocol.file.allow=always")
    options = [word for setting in settings for word in ("-c", setting)]
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(home.parent), "LANG": "C.UTF-8"}
    return subprocess.run(
        ["git", *options, *args], cwd=home, env=env, check=check, capture_output=True, text=True, timeout=60
    )


def repository(home: Path, files: Mapping[str, str] = FILES, *, commit: bool = True, **init: str) -> Path:
    home.mkdir(parents=True)
    git(home, "init", "-q", *(f"--{key.replace('_', '-')}={value}" for key, value in init.items()))
    write(home, files)
    for path in files:
        if path.endswith(".sh"):
            (home / path).chmod(0o755)
    git(home, "add", "-A")
    if commit:
        git(home, "commit", "-qm", "x")
    return home


def write(home: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
