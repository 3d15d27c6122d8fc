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
