"""Makes the archive ``data.tar.gz``: a data directory of an earlier version, and the answers of that version about it.

It was run by hand in a checkout of commit 1883eb5 with that checkout's own environment, on Linux x86_64 as root::

    python make.py data.tar.gz

It works as an operator does, with the command line beside a running server, and fails when a command fails. The
archive leaves out ``run/`` and ``catalogue.db``, which every start makes anew, and the log of the build, which names
paths of the machine. ``expected.json`` beside the directory has the answers.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))


from skillyard.server_process import ServerProcess

MAIN = """
import os

def main(args):
    return {"text": args["text"], "secret": len(os.environ.get("LEDGER_KEY", ""))}
"""
WITH_PACKAGE = "import alpha\n\ndef main(args):\n    return {'alpha': alpha.VERSION}\n"
NEEDS = '\n[permissions]\nsecrets = ["LEDGER_KEY"]\n'
TEXT = json.dumps({"text": "old"})
FEW, MANY = b"inline", b"0123456789abcdef" * 4096


class Maker:
    """``skillyard`` of the checkout, on the data directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.where = {**os.environ, "SKILLYARD_DATA_DIR": str(self.data)}

    def __call__(self, *words: str, stdin: bytes = b"") -> str:
        command = [sys.executable, "-m", "skillyard", *words]
        done = subprocess.run(command, input=stdin, env=self.where, capture_output=True, timeout=300, check=False)
        if done.returncode:
            raise SystemExit(f"{words}: {done.returncode}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        return json.loads(self(*words, "--json", stdin=stdin))

    def file(self, name: str, content: bytes) -> str:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def skill(self, name: str, version: str, needs: str = "", main: str = MAIN) -> str:
        """Makes a skill from the template."""
        self("skill", "new", name, "--dir", str(self.home / version))
        home = self.home / version / name
        manifest = home / "skill.toml"
        manifest.write_text(manifest.read_text().replace('version = "0.1.0"', f'version = "{version}"') + needs)
        (home / "code" / "main.py").write_text(main)
        return str(home)


def made(maker: Maker) -> dict[str, Any]:
    few = maker.json("blob", "put", maker.file("few.txt", FEW))
    many = maker.json("blob", "put", maker.file("many.bin", MANY))
    tokens = {name: maker("token", "create", name, "--project", project).strip() for name, project in TOKENS.items()}
    maker("token", "create", "gone")
    maker("token", "revoke", "gone")
    maker("secret", "set", "LEDGER_KEY", "--skills", "ledger.*", stdin=b"first-value-1")
    maker("secret", "set", "LEDGER_KEY", "--skills", "ledger.*", stdin=b"second-value-2")
    maker("secret", "set", "GATE_KEY", "--delivery", "gate", "--host", "api.example.com", stdin=b"gate-value-33")
    maker("skill", "publish", maker.skill("ledger.text.say", "1.0.0", NEEDS), "--approve")
    maker("skill", "publish", maker.skill("ledger.text.say", "1.1.0", NEEDS))
    maker("skill", "publish", maker.skill("ledger.text.say", "2.0.0"))
    maker("skill", "withdraw", "ledger.text.say@2.0.0", "--reason", "a mistake")
    maker("skill", "pin", "ledger.text.say@1.0.0")
    package = '\n[dependencies]\nalpha = ">=1"\n'
    maker("skill", "publish", maker.skill("ledger.alpha.ask", "1.0.0", package, WITH_PACKAGE), "--approve")
    maker("environment", "build", "--package", "alpha")
    maker("exec", "-", "--package", "alpha", stdin=WITH_PACKAGE.encode())
    maker("exec", "-", stdin=b"def main(args):\n    print('logged')\n    return 1\n")
    maker("run", "ledger.text.say", "--args", TEXT)
    maker("run", "ledger.alpha.ask", "--args", TEXT)
    for environment in (environments := maker.json("environment", "list"))["environments"]:
        maker("blob", "rm", environment["log"])
    return {
        "tokens": tokens,
        "blobs": {blob["blob_id"]: hashlib.sha256(data).hexdigest() for blob, data in ((few, FEW), (many, MANY))},
        "records": maker.json("runs", "list"),
        "secrets": maker.json("secret", "list"),
        "versions": maker.json("skill", "list", "--versions"),
        "approvals": maker.json("skill", "approvals"),
        "environments": environments,
    }


TOKENS = {"ann": "default", "bob": "crm"}


def main() -> None:
    index_of_packages = importlib.import_module("tests.packages.index").Index  # where it was in that version
    with tempfile.TemporaryDirectory() as directory, index_of_packages() as index:
        maker = Maker(Path(directory))
        index.add("alpha", requires=["beta>=1"])
        index.add("beta", "1.0")
        settings = {"SKILLYARD_PACKAGES__INDEX": index.url, "SKILLYARD_PACKAGES__RUN_CODE": '["*"]'}
        with ServerProcess(maker.data, settings=settings):
            expected = made(maker) | {"index": index.url}
        with closing(sqlite3.connect(maker.data / "skillyard.db")) as connection:
            connection.execute("VACUUM")  # no page keeps the log of the build
        maker.file("expected.json", json.dumps(expected, indent=1).encode())
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            archive.add(maker.data, "data", filter=_kept)
            archive.add(maker.home / "expected.json", "expected.json")


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = Path(member.name)
    return None if "run" in path.parts[1:2] or path.name.startswith("catalogue.db") else member


if __name__ == "__main__":
    main()
