"""The report in Markdown."""


def render(profile, title="Summary of a table", top=5):
    parts = [f"# {_plain(title)}", "", f"{profile.rows:,} rows, {len(profile.columns):,} columns."]
    if profile.ragged:
        parts.append(f"{profile.ragged:,} rows have more cells than the header.")
    parts += ["", *_numbers(profile), *_texts(profile, top)]
    return "\n".join(parts).rstrip() + "\n"


def _numbers(profile):
    columns = [column for column in profile.columns if column.kind == "number"]
    if not columns:
        return
    yield from ("## Numbers", "")
    yield "| column | values | missing | min | mean | max | deviation | distinct |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for column in columns:
        figures = (column.low, column.mean, column.high, column.deviation)
        shown = " | ".join(f"{figure:,.6g}" for figure in figures)
        yield f"| {_plain(column.name)} | {column.count:,} | {column.missing:,} | {shown} | {_distinct(column)} |"
    yield ""


def _texts(profile, top):
    columns = [column for column in profile.columns if column.kind == "text"]
    if not columns:
        return
    yield from ("## Text", "")
    yield "| column | values | missing | length | distinct | most frequent |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for column in columns:
        length = f"{column.shortest or 0}-{column.longest or 0}"
        frequent = ", ".join(f"{_plain(value)} ({count:,})" for value, count in column.top(top))
        row = (_plain(column.name), f"{column.count:,}", f"{column.missing:,}", length, _distinct(column), frequent)
        yield f"| {' | '.join(row)} |"
    yield ""


def _distinct(column):
    return f"more than {column.distinct:,}" if column.more else f"{column.distinct:,}"


def _plain(text):
    """A value that cannot break the table that it stands in."""
    shown = " ".join(str(text).split()).replace("|", "\\|").replace("`", "'")
    return shown if len(shown) <= 40 else f"{shown[:39]}…"
