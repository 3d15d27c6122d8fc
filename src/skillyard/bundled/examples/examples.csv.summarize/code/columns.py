"""Counters of one column, fed batch by batch."""

import math
from collections import Counter

MAX_DISTINCT = 10_000


class Column:
    """``kind`` is ``number`` as long as every value so far is blank or a finite number, else ``text``."""

    def __init__(self, name):
        self.name = name
        self.count = 0
        self.missing = 0
        self.values = Counter()
        self.more = False
        self.shortest = self.longest = None
        self.low = self.high = None
        self._numeric = True
        self._mean = 0.0
        self._squares = 0.0

    @property
    def kind(self):
        return "number" if self._numeric and self.count else "text"

    @property
    def mean(self):
        return self._mean if self.kind == "number" else None

    @property
    def deviation(self):
        """Standard deviation of the values seen, as of a sample."""
        if self.kind != "number":
            return None
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    @property
    def distinct(self):
        return len(self.values)

    def take(self, cells):
        """Count a batch of cells, given as text."""
        values = [cell for cell in map(str.strip, cells) if cell]
        self.missing += len(cells) - len(values)
        if not values:
            return
        if self._numeric:
            self._take_numbers(values)
        self.count += len(values)
        self._take_texts(values)

    def top(self, count):
        return self.values.most_common(count)

    def brief(self):
        """The column in a few JSON values."""
        facts = {"name": self.name[:60], "kind": self.kind, "missing": self.missing}
        if self.kind == "number":
            return facts | {"min": self.low, "max": self.high, "mean": round(self._mean, 6)}
        return facts | {"distinct": self.distinct, "more": self.more}

    def _take_numbers(self, values):
        try:
            numbers = list(map(float, values))
        except ValueError:
            numbers = [math.nan]
        if not all(map(math.isfinite, numbers)):
            self._numeric = False
            return
        low, high = min(numbers), max(numbers)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self._merge(numbers)

    def _merge(self, numbers):
        """Join the batch's mean and squared deviations to those so far (Chan, Golub, LeVeque 1979)."""
        size = len(numbers)
        mean = math.fsum(numbers) / size
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        total = self.count + size
        shift = mean - self._mean
        self._mean += shift * size / total
        self._squares += squares + shift * shift * self.count * size / total

    def _take_texts(self, values):
        lengths = list(map(len, values))
        self.shortest = min(lengths) if self.shortest is None else min(self.shortest, *lengths)
        self.longest = max(lengths) if self.longest is None else max(self.longest, *lengths)
        if self.more:
            self.values.update(value for value in values if value in self.values)
            return
        self.values.update(values)
        if len(self.values) > MAX_DISTINCT:
            self.more = True
            self.values = Counter(dict(list(self.values.items())[:MAX_DISTINCT]))
