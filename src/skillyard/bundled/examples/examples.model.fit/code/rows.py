"""From a CSV blob to rows of features and a target."""

import csv
import math

from runtime import blobs

MAX_ROWS, MAX_VALUES, MAX_CLASSES = 100_000, 50, 10
DELIMITERS = ",;\t|"


class Table:
    """``rows`` are dicts of features, ``target`` what is to be predicted from each. ``left_out`` are text columns with
    too many values; ``dropped`` counts the rows without a target."""

    def __init__(self, records, target, features):
        everything, records = records, [record for record in records if record[target].strip()]
        self.dropped = len(everything) - len(records)
        values = _column(records, target)
        self.task = "regression" if _is_numeric(values) and len(set(values)) > MAX_CLASSES else "classification"
        self.target = values if self.task == "regression" else [record[target].strip() for record in records]
        if len(set(self.target)) < 2:
            raise ValueError(f"there is nothing to predict: {target!r} has one value only")
        columns = {name: _column(records, name) for name in features}
        self.left_out = [name for name, found in columns.items() if _is_name(found)]
        self.rows = [{} for _ in records]
        for name, found in columns.items():
            if name not in self.left_out:
                for row, value in zip(self.rows, found, strict=True):
                    row[name] = value
        if not any(self.rows):
            raise ValueError("there is nothing to predict from: every column is the target or was left out")


def read(blob_id, target, features=None):
    """Raises ValueError for what is no table, or has not those columns."""
    lines = blobs.read_text(blob_id).removeprefix("\ufeff").splitlines(keepends=True)
    reader = csv.DictReader(lines, delimiter=max(DELIMITERS, key=(lines or [""])[0].count), restval="")
    names = list(reader.fieldnames or ())
    for name in (target, *(features or ())):
        if name not in names:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(names[:50]) or 'none'}")
    records = list(reader)
    if len(records) > MAX_ROWS:
        raise ValueError(f"the table has {len(records):,} rows; at most {MAX_ROWS:,} are read")
    return Table(records, target, [name for name in features or names if name != target])


def _column(records, name):
    """Numbers, NaN where there is none, when every value that is there is one; else the text itself."""
    texts = [record[name].strip() for record in records]
    numbers = [_number(text) for text in texts]
    if all(number is not None for number in numbers):
        return numbers
    return texts


def _number(text):
    """None for what is no number."""
    if not text:
        return math.nan
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_numeric(values):
    return all(isinstance(value, float) for value in values)


def _is_name(values):
    return not _is_numeric(values) and len(set(values)) > MAX_VALUES
