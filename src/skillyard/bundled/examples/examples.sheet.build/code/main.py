"""A workbook from a table: data, totals as formulas, a chart."""

from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter
from runtime import blobs, log

from . import charts, tables

__all__ = ["build", "main", "tables"]

KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
TOTALS = {"Total": "SUM", "Average": "AVERAGE"}
FORBIDDEN = str.maketrans(dict.fromkeys("[]:*?/\\", " "))
"""What the name of a sheet may not hold."""


def main(args):
    table = tables.read(args["blob"])
    log.info(f"read {table.rows} rows of {len(table.names)} columns")
    book = build(table, args.get("title", "Data"), args.get("chart", "bar"), args.get("series"))
    book.save("workbook.xlsx")
    formulas = {name: _formula("SUM", at, table.rows) for at, name in table.numbers()}
    return {
        "summary": f"A workbook of {table.rows:,} rows and {len(table.names)} columns, {len(formulas)} with totals.",
        "workbook_blob": blobs.write_file("workbook.xlsx", KIND),
        "rows": table.rows,
        "columns": table.names[:50],
        "totals": dict(list(formulas.items())[:20]),
    }


def build(table, title="Data", chart="bar", series=None):
    book = Workbook()
    sheet = book.active
    sheet.title = title.translate(FORBIDDEN).strip("' ") or "Data"
    _fill(sheet, table)
    if table.rows:
        _total(sheet, table)
    if chart != "none" and table.rows:
        charts.add(sheet, table, chart, title, series)
    return book


def _fill(sheet, table):
    for at, (name, values) in enumerate(zip(table.names, table.columns, strict=True), 1):
        _write(sheet.cell(1, at), name).font = Font(bold=True)
        for row, value in enumerate(values, 2):
            if value is not None:
                _write(sheet.cell(row, at), value)
        sheet.column_dimensions[get_column_letter(at)].width = _width(name, values)
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(table.names))}{table.rows + 1}"


def _write(cell, value):
    """Text is never a formula, however it begins."""
    cell.value = value
    if isinstance(value, str):
        cell.data_type = "s"
    return cell


def _total(sheet, table):
    numbers = table.numbers()
    for below, (label, function) in enumerate(TOTALS.items(), table.rows + 3):
        if numbers and numbers[0][0] > 1:
            sheet.cell(below, 1, label).font = Font(bold=True)
        for at, _name in numbers:
            sheet.cell(below, at, _formula(function, at, table.rows)).font = Font(bold=True)


def _formula(function, at, rows):
    letter = get_column_letter(at)
    return f"={function}({letter}2:{letter}{rows + 1})"


def _width(name, values):
    longest = max((len(str(value)) for value in values[:200] if value is not None), default=0)
    return min(60, max(8, len(name) + 4, longest + 2))
