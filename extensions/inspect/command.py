"""Propose the schema of your own table, and show its columns on a page.

    python -m data_prep.inspect data.raw=ratings.csv [data.label="rating >= 4"] [out=DIR] > ratings.yaml

The schema goes to stdout, as YAML with comments; notes, and where the page lies, to stderr.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.report.charts import Chart, Series
from app.report.page import ReportTable, render
from app.report.read import count, percent, plural
from common.cli import EXIT_DONE
from common.errors import UserError
from common.keys import MISSING, key
from common.machine import require_memory
from data_prep.dataset.options import LabelKind
from data_prep.parsing.dates import NUMBERS, number_of
from data_prep.parsing.table_yaml import drop_empty_files
from data_prep.sources.discover import Source, resolve_sources, without_packing
from extensions.inspect.proposal import LEAK_AUC, Proposal, number_text, order_sentences, propose_schema


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


BINS, STRETCHES = 40, 50  # of a distribution; of the rows, whose label rate is drawn
VALUES, MAX_COLUMNS, SHOWN = 8, 40, 40  # frequent values shown; columns of wide tables; characters of a value
USES = {"dense": "number", "sparse": "category", "label": "label", "out": "left out"}


def inspection_page(proposal: Proposal, directory: Path) -> str:
    """Return the HTML of a proposal for files in a directory."""
    profile, sample, label = proposal.profile, proposal.profile.sample, proposal.label
    is_click, labels = label.kind is LabelKind.click, label.numbers(sample.columns[label.column])
    name = "label rate" if is_click else "mean label"
    parts = np.array_split(np.argsort(sample.numbers, kind="stable"), STRETCHES)
    means = [(float(sample.numbers[part].mean()), float(labels[part].mean())) for part in parts if len(part)]
    points = [Series(name, [at for at, _ in means], [mean for _, mean in means], "points")]
    course = Chart("label_rows", f"{name.capitalize()} by row", "row", name, points, steps=False, from_zero=True)
    columns, uses = profile.columns, proposal.uses.items()
    numeric = [column for column, use in uses if use.place == "dense" and not columns[column].lists][:MAX_COLUMNS]
    values = {column: [number_of(text, NUMBERS) for text in sample.columns[column]] for column in numeric}
    distributions = [_histogram(column, np.array(numbers)) for column, numbers in values.items()]
    categories = [column for column, use in uses if use.place == "sparse" and not columns[column].is_time][:MAX_COLUMNS]
    sentences = [("", text) for text in (*order_sentences(proposal), *proposal.notes)]
    if leaks := [column for column, use in uses if use.auc is not None and use.auc > LEAK_AUC]:
        words = "which alone predicts the label; add it if it is known before the label."
        sentences.insert(0, ("bad", f"Left out: {', '.join(leaks[:4])}, {words}"))
    files = profile.files.sources
    figures, fields = columns[label.column], profile.rows * len(columns)
    missing = sum(_missing_rows(proposal, column) for column in columns)
    grades = f"{number_text(figures.low)} to {number_text(figures.high)}"
    tiles = [
        ("Rows", count(profile.rows), plural(len(files), "file")),
        ("Label rate", percent(label.rate, 2), f"of {label.column}")
        if label.rate is not None
        else ("Label", grades, f"of {label.column}"),
        ("Missing fields", percent(missing / fields), f"{missing:,} of {fields:,}"),
    ]
    return render(
        Path(__file__).with_name("inspect.html.j2"),
        directory,
        [course, *distributions],
        title=files[0].name + (f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else ""),
        about=[("Figures of", profile.scope()), ("Format", profile.files.form.name.replace("_", " "))],
        tiles=tiles,
        sentences=sentences,
        schema=proposal.text,
        columns=_column_table(proposal),
        label=[course],
        rates=[(column, _frequent_values(proposal, column, labels, is_click)) for column in categories],
        distributions=distributions,
    )


def _missing_rows(proposal: Proposal, name: str) -> int:
    """Return the number of rows whose field in a column is empty, or a text that means no value."""
    figures = proposal.profile.columns[name]
    return figures.missing + sum(figures.marks[mark] for mark in proposal.missing)


def _column_table(proposal: Proposal) -> ReportTable:
    """Return a table of all columns, their use and figures."""
    rows = []
    for name, use in proposal.uses.items():
        figures = proposal.profile.columns[name]
        is_time = proposal.time is not None and proposal.time[0] == name
        different = f"{'' if figures.distinct.is_exact else 'about '}{len(figures.distinct):,}"
        missing = percent(_missing_rows(proposal, name) / max(1, figures.rows))
        examples = ", ".join(repr(text[:SHOWN])[1:-1] for text in dict.fromkeys(figures.examples)) or "–"
        auc = "–" if use.auc is None else f"{use.auc:.3f}"
        rows.append([name, "time" if is_time else USES[use.place], different, missing, auc, examples, use.reason])
    note = "AUC: of the column's label rates alone, for each half of the sample by the rates of the other half."
    names = ["Column", "Use", "Different values", "Missing", "AUC", "Examples", "Why"]
    return ReportTable(names, rows, {2, 3, 4}, note)


def _frequent_values(proposal: Proposal, name: str, labels: NDArray[np.float64], is_click: bool) -> ReportTable:
    """Return the most frequent values of a category, with their rows and label rate in the sample.

    labels: [rows of the sample], 0 and 1 with is_click, else the numbers to predict.
    """
    entries = [entry for entry in proposal.uses[name].entries if isinstance(entry, dict)]
    separator = next((str(entry["separator"]) for entry in entries if "separator" in entry), "")
    rows, sums = Counter[str](), Counter[str]()
    for value, label in zip(proposal.profile.sample.columns[name], labels.tolist(), strict=True):
        members = value if isinstance(value, list) else value.split(separator) if separator else [value]
        for member in dict.fromkeys(members):
            rows[member] += 1
            sums[member] += label
    shown = []
    for value, number in rows.most_common(VALUES):
        rate = percent(sums[value] / number) if is_click else f"{sums[value] / number:,.4g}"
        text = repr(value[:SHOWN])[1:-1] or "(empty)"
        shown.append([text, count(number), percent(number / max(1, len(labels))), rate])
    more = f"{len(rows) - VALUES:,} more values in these rows." if len(rows) > VALUES else ""
    return ReportTable(["Value", "Rows", "Share", "Label rate" if is_click else "Mean label"], shown, {1, 2, 3}, more)


def _histogram(name: str, numbers: NDArray[np.float64]) -> Chart:
    """Return a histogram of a column; its lowest and its highest 0.5 % of values are in the outer bars."""
    finite = numbers[np.isfinite(numbers)]
    chart = Chart(f"distribution_{name}", name, name, "rows", steps=False, from_zero=True, absent="as it has no value")
    if len(finite):
        low, high = np.quantile(finite, [0.005, 0.995])
        counts, edges = np.histogram(np.clip(finite, low, high), BINS, (low, high))
        chart.series = [Series("rows", ((edges[1:] + edges[:-1]) / 2).tolist(), counts.tolist(), "bars")]
        chart.note = (
            f"From {number_text(finite.min())} to {number_text(finite.max())}; outer bars hold the values beyond."
        )
    return chart


def main(config: InspectConfig) -> int:
    """Inspect as configured, and return an exit status."""
    require_memory("inspecting")
    sources = drop_empty_files(resolve_sources(config.data.raw))
    proposal = propose_schema(sources, config.data.label)
    from app.report.page import write_page

    page = inspection_page(proposal, Path(sources[0].path).parent)
    path = Path(config.out) / f"{_page_name(config.data.raw, sources)}.html"
    try:
        write_page(path, page)
    except OSError as error:
        raise UserError(f"out={config.out}: not a directory ({error.strerror}); give another") from error
    print(proposal.text, end="")
    for sentence in [*order_sentences(proposal), *proposal.notes]:
        print(sentence, file=sys.stderr)
    print(f"{path}: the columns, their values and label rates", file=sys.stderr)
    return EXIT_DONE


def _page_name(raw: Any, sources: Sequence[Source]) -> str:
    """Return the name of one file without its endings, or of the directory or glob of several."""
    if len(sources) == 1:
        return Path(without_packing(sources[0].name)).stem
    return re.sub(r"[^\w-]", "", Path(raw).stem if isinstance(raw, str) else "") or "table"
