"""The texts of a new skill."""

MANIFEST = """\
name = {name}
version = "0.1.0"
description = {description}
kind = "{kind}"
tags = []
"""

RUNTIME = """
[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

# Packages of Python, installed once and kept apart from everything else:
# [dependencies]
# numpy = ">=2"

# Hosts that it may reach, and secrets that it gets; it has neither unless they stand here:
# [permissions]
# network = ["api.example.com:443"]
# secrets = [{ name = "API_KEY", delivery = "gate", hosts = ["api.example.com"] }]

[inputs]
type = "object"
required = ["text"]
additionalProperties = false

[inputs.properties.text]
type = "string"
description = "The text to work on"
"""

SKILL_MD = """\
---
name: {identifier}
description: {description}
metadata:
  title: {quoted_title}
---
# {title}

Say here what the skill does, when to use it, and what to watch out for.
"""

USAGE = """
## Input

`text`: the text to work on.

## Output

`length`: its number of characters.

## Example

```json
{{"name": {name}, "args": {{"text": "hello"}}}}
```
"""

MAIN = '''\
"""The entrypoint: a function that takes the args object and returns a small JSON object."""

from runtime import log


def main(args):
    text = args["text"]
    log.info(f"working on {len(text)} characters")
    return {"summary": f"The text has {len(text)} characters.", "length": len(text)}
'''

EXAMPLES = """\
# Runs of this skill with what they must give: skillyard skill test DIR

[[example]]
name = "counts the characters"
args = { text = "hello" }

[example.expect]
output = { length = 5 }
log = "working on 5 characters"

[[example]]
name = "needs a text"
args = {}

[example.expect]
error = "ValidationError"
"""

AGENT_SKILL_MD = """\
---
name: {identifier}
description: {description}
metadata:
  version: "0.1.0"
---
# {title}

Say here what to do, step by step, when the skill is used.

## Count lines and words

Run `scripts/count.py` with the path of a text file. It prints one JSON object:

```sh
python scripts/count.py poem.txt
```

Without a path it reads standard input.
"""

SCRIPT = '''\
#!/usr/bin/env python3
"""Count the lines and words of a text: of the file that is named, else of standard input."""

import json
import sys
from pathlib import Path


def count(text):
    return {"lines": len(text.splitlines()), "words": len(text.split())}


def main(argv):
    if len(argv) > 1:
        sys.exit("usage: count.py [FILE]")
    text = Path(argv[0]).read_text(encoding="utf-8") if argv else sys.stdin.read()
    print(json.dumps(count(text)))


if __name__ == "__main__":
    main(sys.argv[1:])
'''

SCRIPT_EXAMPLES = """\
# Runs of the scripts with what they must give: skillyard skill test DIR

[[example]]
name = "counts a file"
script = "scripts/count.py"
blobs = { poem = "tests/poem.txt" }
argv = ["{poem}"]

[example.expect]
exit = 0
stdout = '{"lines": 2, "words": 6}'

[[example]]
name = "counts what it is given"
script = "scripts/count.py"
stdin = "one two"

[example.expect]
stdout = '"words": 2'

[[example]]
name = "refuses two files"
script = "scripts/count.py"
argv = ["a", "b"]

[example.expect]
exit = 1
stderr = "usage"

[[example]]
name = "can be imported"
code = '''
from count import count


def main(args):
    return count("one\\ntwo")
'''

[example.expect]
output = { lines = 2, words = 2 }
"""

POEM = """\
Roses are red,
violets are blue.
"""
