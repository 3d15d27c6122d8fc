"""A chart beside the data."""

from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.utils import get_column_letter

SHOWN_SERIES = 3
KINDS = {"bar": BarChart, "line": LineChart}


def add(sheet, table, kind, title, series=None):
    """Nothing happens when no column holds numbers. Raises ValueError for a series that is none."""
    numbers = {name: at for at, name in table.numbers()}
    unknown = [name for name in series or () if name not in numbers]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no column of numbers; there are {', '.join(numbers) or 'none'}")
    shown = series or list(numbers)[:SHOWN_SERIES]
    if not shown:
        return
    chart = KINDS[kind]()
    chart.title = title
    chart.width, chart.height = 24, 12
    last = table.rows + 1
    for name in shown:
        at = numbers[name]
        chart.add_data(Reference(sheet, min_col=at, min_row=1, max_row=last), titles_from_data=True)
    labels = next((at for at in range(1, len(table.names) + 1) if at not in numbers.values()), None)
    if labels:
        chart.set_categories(Reference(sheet, min_col=labels, min_row=2, max_row=last))
    sheet.add_chart(chart, f"{get_column_letter(len(table.names) + 2)}2")
