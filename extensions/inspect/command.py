"""Propose the schema of your own table, and show its columns on a page.

    python -m data_prep.inspect data.raw=ratings.csv [data.label="rating >= 4"] [out=DIR] > ratings.yaml

The schema goes to stdout, as YAML with comments; notes, and where the page lies, to stderr.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.report.charts import Chart, Series
from app.report.page import ReportTable, render, write_page
from app.report.read import count, percent, plural
from common.cli import EXIT_DONE
from common.keys import MISSING, key
from common.machine import require_memory
from data_prep.parsing.table import drop_empty_files
from data_prep.sources.files import resolve_sources, without_packing
from extensions.inspect.proposal import LEAK_AUC, Proposal, order_sentences, propose_schema


@dataclass(frozen=True)
class InspectedData:
    """The table to inspect."""

    raw: Any = key(MISSING, "path, glob or directory of files of your own table, or a list of these", example="ads.csv")
    label: str | None = key(
        None,
        "column of the labels, or a rule such as rating >= 4; null: the column named label, click, clicked, target, y "
        "or rating",
    )


@dataclass(frozen=True)
class InspectConfig:
    """Configuration of `python -m data_prep.inspect`."""

    data: InspectedData = field(default_factory=InspectedData)
    out: str = key("inspect", "directory of the page, NAME.html")


BINS = 40  # of a distribution
VALUES, MAX_COLUMNS, SHOWN = 8, 40, 40  # frequent values shown; columns of wide tables; characters of a value
EXAMPLES = 5  # texts shown of a column
USES = {"dense": "number", "sparse": "category", "label": "label", "out": "left out"}


def inspection_page(proposal: Proposal, directory: Path) -> str:
    """Return the HTML of a proposal for files in a directory."""
    profile, label = proposal.profile, proposal.label
    distributions = [_histogram(proposal, column) for column in proposal.columns_of("dense")[:MAX_COLUMNS]]
    categories = [column for column in proposal.columns_of("sparse") if not proposal.uses[column].formats]
    sentences = [("", text) for text in order_sentences(proposal)]
    if leaks := [column for column, use in proposal.uses.items() if use.auc is not None and use.auc > LEAK_AUC]:
        words = "which alone predicts the label; add it if it is known before the label."
        sentences.insert(0, ("bad", f"Left out: {', '.join(leaks[:4])}, {words}"))
    files, columns = profile.sources, profile.columns
    missing, fields = sum(_missing_rows(proposal, column) for column in columns), profile.rows * len(columns)
    tiles = [
        ("Rows", count(profile.rows), plural(len(files), "file")),
        ("Label", f"{columns[label.column].low:,.8g} to {columns[label.column].high:,.8g}", f"of {label.column}")
        if label.rate is None
        else ("Label rate", percent(label.rate, 2), f"of {label.column}"),
        ("Missing fields", percent(missing / fields), f"{missing:,} of {fields:,}"),
    ]
    return render(
        Path(__file__).with_name("inspect.html.j2"),
        directory,
        distributions,
        title=files[0].name + (f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else ""),
        about=[("Figures of", profile.scope()), ("Format", profile.form.name.replace("_", " "))],
        tiles=tiles,
        sentences=sentences,
        schema=proposal.text,
        columns=_column_table(proposal),
        rates=[(column, _frequent_values(proposal, column)) for column in categories[:MAX_COLUMNS]],
        distributions=distributions,
    )


def _missing_rows(proposal: Proposal, name: str) -> int:
    """Return the number of rows whose field in a column is empty, or a text that means no value."""
    figures = proposal.profile.columns[name]
    return figures.counts["empty"] + sum(figures.marks[mark] for mark in proposal.missing)


def _column_table(proposal: Proposal) -> ReportTable:
    """Return a table of all columns, their use and figures."""
    rows = []
    for name, use in proposal.uses.items():
        figures = proposal.profile.columns[name]
        texts = [
            text for field in figures.sample[:EXAMPLES] for text in (field if isinstance(field, list) else [field])
        ]
        examples = ", ".join(repr(text[:SHOWN])[1:-1] for text in dict.fromkeys(texts) if text) or "–"
        is_time = proposal.time is not None and proposal.time[0] == name
        missing = percent(_missing_rows(proposal, name) / proposal.profile.rows)
        auc = "–" if use.auc is None else f"{use.auc:.3f}"
        place = "time" if is_time else USES[use.place]
        rows.append([name, place, figures.value_count, missing, auc, examples, use.reason])
    note = "AUC: of the column's label rates alone, for each half of the sample by the rates of the other half."
    names = ["Column", "Use", "Different values", "Missing", "AUC", "Examples", "Why"]
    return ReportTable(names, rows, {2, 3, 4}, note)


def _frequent_values(proposal: Proposal, name: str) -> ReportTable:
    """Return the most frequent values of a category, with their rows and label rate in the sample."""
    [entry], label = proposal.uses[name].entries, proposal.label
    separator = entry["separator"] if isinstance(entry, dict) else ""
    rows, sums = Counter[str](), Counter[str]()
    for value, number in zip(proposal.profile.columns[name].sample, label.values.tolist(), strict=True):
        members = value if isinstance(value, list) else value.split(separator) if separator else [value]
        for member in dict.fromkeys(members):
            rows[member] += 1
            sums[member] += number
    shown = []
    for value, number in rows.most_common(VALUES):
        rate = percent(sums[value] / number) if label.is_click else f"{sums[value] / number:,.4g}"
        text = repr(value[:SHOWN])[1:-1] or "(empty)"
        shown.append([text, count(number), percent(number / len(label.values)), rate])
    more = f"{len(rows) - VALUES:,} more values in these rows." if len(rows) > VALUES else ""
    return ReportTable(
        ["Value", "Rows", "Share", "Label rate" if label.is_click else "Mean label"], shown, {1, 2, 3}, more
    )


def _histogram(proposal: Proposal, name: str) -> Chart:
    """Return a histogram of a column; its lowest and its highest 0.5 % of values are in the outer bars."""
    numbers = proposal.profile.columns[name].numbers
    chart = Chart(f"distribution_{name}", name, name, "rows", steps=False, from_zero=True, absent="as it has no value")
    if len(numbers):
        low, high = np.quantile(numbers, [0.005, 0.995])
        counts, edges = np.histogram(np.clip(numbers, low, high), BINS, (low, high))
        chart.series = [Series("rows", ((edges[1:] + edges[:-1]) / 2).tolist(), counts.tolist(), "bars")]
        chart.note = f"From {numbers.min():,.8g} to {numbers.max():,.8g}; outer bars hold the values beyond."
    return chart


def main(config: InspectConfig) -> int:
    """Inspect as configured, and return an exit status."""
    require_memory("inspecting")
    sources = drop_empty_files(resolve_sources(config.data.raw))
    proposal = propose_schema(sources, config.data.label)
    page = inspection_page(proposal, Path(sources[0].path).parent)
    path = Path(config.out) / f"{Path(without_packing(sources[0].name)).stem}.html"
    write_page(path, page)
    print(proposal.text, end="")
    for sentence in order_sentences(proposal):
        print(sentence, file=sys.stderr)
    print(f"{path}: the columns, their values and label rates", file=sys.stderr)
    return EXIT_DONE
