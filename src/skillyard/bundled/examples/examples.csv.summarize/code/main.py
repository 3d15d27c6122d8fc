"""Describe a CSV blob in one streaming pass: standard library only, memory independent of the number of rows."""

import csv
import itertools

from runtime import blobs, log

from .columns import Column
from .report import render

__all__ = ["Column", "Profile", "main", "profile_blob", "profile_lines", "render", "rows_of"]

BATCH = 5000
SHOWN = 20
DELIMITERS = ",;\t|"


class Profile:
    """What a table is like. ``ragged`` counts the rows with more cells than the header."""

    def __init__(self, columns):
        self.columns = columns
        self.rows = 0
        self.ragged = 0


def main(args):
    profile = profile_blob(args["blob"], args.get("delimiter"))
    log.info(f"read {profile.rows} rows of {len(profile.columns)} columns")
    report = render(profile, args.get("title", "Summary of a table"), args.get("top", 5))
    return {
        "summary": f"{profile.rows:,} rows, {len(profile.columns)} columns: {_kinds(profile)}.",
        "rows": profile.rows,
        "ragged": profile.ragged,
        "columns": [column.brief() for column in profile.columns[:SHOWN]],
        "report_blob": blobs.write_text(report, kind="text/markdown"),
    }


def rows_of(blob_id, delimiter=None):
    """The rows of a CSV blob as dicts, one at a time."""
    with _opened(blob_id) as stream:
        head, lines = _peek(stream)
        yield from csv.DictReader(lines, delimiter=delimiter or find_delimiter(head))


def profile_blob(blob_id, delimiter=None):
    with _opened(blob_id) as stream:
        return profile_lines(stream, delimiter)


def profile_lines(lines, delimiter=None):
    """The profile of a table given as lines of CSV; raises ValueError when there is no header."""
    head, lines = _peek(lines)
    reader = csv.reader(lines, delimiter=delimiter or find_delimiter(head))
    names = next(reader, None)
    if not names:
        raise ValueError("the CSV is empty: its first row has to name the columns")
    profile = Profile([Column(name or f"column {number}") for number, name in enumerate(names, 1)])
    while batch := list(itertools.islice(reader, BATCH)):
        _take(profile, [row for row in batch if row])
    return profile


def _take(profile, rows):
    """Count a batch column by column, which is several times faster than cell by cell."""
    profile.rows += len(rows)
    profile.ragged += sum(len(row) > len(profile.columns) for row in rows)
    cells = zip(*_even(rows, len(profile.columns)), strict=True)
    for column, values in zip(profile.columns, cells, strict=False):
        column.take(values)


def _even(rows, width):
    """Rows of exactly ``width`` cells."""
    for row in rows:
        yield row if len(row) == width else (row + [""] * width)[:width]


def find_delimiter(line):
    """The likely delimiter that stands most often in the header."""
    return max(DELIMITERS, key=line.count)


def _peek(lines):
    lines = iter(lines)
    head = next(lines, "")
    return head, itertools.chain([head], lines)


def _opened(blob_id):
    return open(blobs.path(blob_id), encoding="utf-8-sig", errors="replace", newline="")


def _kinds(profile):
    numbers = sum(column.kind == "number" for column in profile.columns)
    return f"{numbers} of numbers, {len(profile.columns) - numbers} of text"
