"""The table of the demo: orders of a shop that does not exist."""

from __future__ import annotations

import csv
import random
from pathlib import Path

HEADER = ("order_id", "day", "region", "product", "quantity", "amount")
REGIONS = {"north": 31, "south": 22, "east": 19, "west": 28}
"""With the weight of each."""
_PRODUCTS = {"lamp": 24.5, "chair": 89.0, "desk": 310.0, "shelf": 129.9, "rug": 64.25}
_SEED = 20261121


def write_orders(path: Path, rows: int) -> int:
    """Write the same ``rows`` orders each time; the file's size in bytes."""
    chance = random.Random(_SEED)  # noqa: S311 - nothing secret
    products = list(_PRODUCTS)
    regions = chance.choices(list(REGIONS), weights=list(REGIONS.values()), k=rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEADER)
        for number, region in enumerate(regions, 1):
            product, quantity = products[int(chance.random() * len(products))], 1 + int(chance.random() ** 2 * 9)
            day = f"2026-{1 + number * 12 // (rows + 1):02}-{1 + number % 28:02}"
            amount = "" if number % 997 == 0 else f"{_PRODUCTS[product] * quantity:.2f}"
            writer.writerow((number, day, region, product, quantity, amount))
    return path.stat().st_size
