"""Tables from blobs of CSV or JSON: columns of numbers or of text, and nothing else."""

import csv
import json
import math
import re

from runtime import blobs

MAX_ROWS, MAX_COLUMNS, MAX_TEXT = 50_000, 200, 32_767
DELIMITERS = ",;\t|"
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What XML 1.0 cannot hold."""


class Table:
    """``names`` of the columns and their values: numbers, text, None for nothing."""

    def __init__(self, names, rows):
        if not names:
            raise ValueError("the table has no columns")
        if len(names) > MAX_COLUMNS or len(rows) > MAX_ROWS:
            raise ValueError(
                f"the table has {len(rows):,} rows and {len(names):,} columns; at most {MAX_ROWS:,} and {MAX_COLUMNS}"
            )
        self.names = [_text(name) or f"column {at}" for at, name in enumerate(names, 1)]
        self.rows = len(rows)
        self.columns = [_column([row[at] if at < len(row) else None for row in rows]) for at in range(len(names))]

    def numbers(self):
        """(position from 1, name) of each column that holds numbers alone."""
        found = enumerate(zip(self.names, self.columns, strict=True), 1)
        return [(at, name) for at, (name, values) in found if _is_numeric(values)]


def read(blob_id):
    """Raises ValueError for what is no table."""
    text = blobs.read_text(blob_id).removeprefix("\ufeff")
    return from_json(text) if text.lstrip()[:1] in ("[", "{") else from_csv(text)


def from_csv(text):
    lines = text.splitlines(keepends=True)
    delimiter = max(DELIMITERS, key=(lines or [""])[0].count)
    names, *rows = [row for row in csv.reader(lines, delimiter=delimiter) if row] or [[]]
    return Table(names, rows)


def from_json(text):
    records = json.loads(text)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("the JSON must be a list of objects")
    names = list(dict.fromkeys(name for record in records for name in record))
    return Table(names, [[record.get(name) for name in names] for record in records])


def _column(values):
    """Numbers when every value that is there is one."""
    numbers = [_number(value) for value in values]
    if all(number is not None or value in (None, "") for number, value in zip(numbers, values, strict=True)):
        return numbers
    return [None if value in (None, "") else _text(value) for value in values]


def _number(value):
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _text(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return CONTROL.sub("\ufffd", text)[:MAX_TEXT]


def _is_numeric(values):
    return any(value is not None for value in values) and not any(isinstance(value, str) for value in values)
