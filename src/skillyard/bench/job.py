"""The job that everybody does: Python source and JSON in, JSON out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]

PLAIN = """
import json, sys
request = json.loads(sys.argv[1])
sys.path[:0] = request["path"]
names = {}
exec(request["code"], names)
print(json.dumps(names["main"](request["args"])))
"""
"""How an interpreter without skillyard does it: the request is its argument, the result its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """``environment`` is what skillyard calls the packages that it needs."""

    name: str
    code: str
    environment: str = "base"

    @property
    def args(self) -> dict[str, Any]:
        return {"xs": _NUMBERS}

    def request(self, packages: Path | None) -> str:
        """Returns the argument of :data:`PLAIN`."""
        return json.dumps({"code": self.code, "args": self.args, "path": [str(packages)] if packages else []})

    def check(self, output: Any) -> None:
        """Raises WrongResult: a fast wrong answer counts for nothing."""
        if output != {"sum": sum(_NUMBERS)}:
            raise WrongResult(f"the job '{self.name}' gave {str(output)[:200]!r}")


class WrongResult(Exception):
    """A job did not give what it should, or gave nothing."""


SUM = Job("sum", 'def main(args): return {"sum": sum(args["xs"])}')
DATA = Job(
    "numpy+pandas",
    "import numpy, pandas\n"
    'def main(args): return {"sum": int(pandas.Series(numpy.array(args["xs"], dtype="int64")).sum())}',
    environment="data",
)
NUMPY = Job(
    "numpy",
    'import numpy\ndef main(args): return {"sum": int(numpy.array(args["xs"], dtype="int64").sum())}',
    environment="numpy",
)
