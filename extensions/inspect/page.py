"""The page of an inspection, in the report's style: one HTML file that loads nothing."""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.report.charts import Chart, Series
from app.report.page import render, write_page
from app.report.tables import ReportTable
from app.report.words import count, percent, plural
from common.errors import UserError
from data_prep.dataset.options import LabelKind
from data_prep.parsing.dates import read_time
from data_prep.parsing.labels import NULL_MARKS
from data_prep.parsing.numbers import NUMBERS, number_of
from extensions.inspect.proposal import LEAK_AUC, Proposal, digits
from extensions.inspect.text import order_sentences

NONE = "–"
BINS = 40  # of a distribution
STRETCHES = 50  # of the rows, or of time, whose label rate is drawn
VALUES = 8  # most frequent values of a column that are shown
MAX_CHARTS, MAX_TABLES = 40, 40  # of wide tables, the first columns
SHOWN = 40  # characters of a value
USES = {"dense": "number", "sparse": "category", "label": "label", "out": "left out"}


def write_inspection(proposal: Proposal, directory: Path, name: str) -> Path:
    """Write the page to NAME.html in a directory; return where."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={directory}: not a directory ({error.strerror}); give another") from error
    source = proposal.profile.files.sources[0]
    return write_page(directory / f"{name}.html", inspection_page(proposal, Path(source.path).parent))


def inspection_page(proposal: Proposal, directory: Path) -> str:
    """Return the HTML of a proposal for files in a directory."""
    profile = proposal.profile
    values = _Values(proposal)
    label = _label_charts(proposal, values)
    distributions = [_distribution(name, numbers, unit) for name, numbers, unit in values.numbers()][:MAX_CHARTS]
    name = profile.files.sources[0].name
    return render(
        Path(__file__).with_name("inspect.html.j2"),
        directory,
        [*label, *distributions],
        title=name
        if len(profile.files.sources) == 1
        else f"{name} and {plural(len(profile.files.sources) - 1, 'more file')}",
        about=[("Figures of", profile.scope()), ("Format", profile.files.form.name.replace("_", " "))],
        tiles=_tiles(proposal),
        sentences=_sentences(proposal),
        schema=proposal.text,
        columns=_columns(proposal),
        label=label,
        rates=list(values.frequent().items())[:MAX_TABLES],
        distributions=distributions,
    )


class _Values:
    """Values of the sample's rows, with their labels if these are 0 and 1."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal, self._sample = proposal, proposal.profile.sample
        texts = self._sample.columns[proposal.label.column]
        self.labels: NDArray[np.float64] = (
            np.array(proposal.label.positives(texts), np.float64)
            if proposal.label.kind is LabelKind.click
            else np.array([number_of(text, NUMBERS) for text in texts])
        )

    def times(self, name: str) -> tuple[NDArray[np.float64], str]:
        """Return a column's times as years, or as days since the first one if that is less than two years ago."""
        form = self._proposal.profile.columns[name].time_format
        moments = [_moment(text, form) for text in self._sample.columns[name]]
        days = np.array([np.nan if moment is None else moment / 86_400e6 for moment in moments])
        first = np.nanmin(days) if np.isfinite(days).any() else 0.0
        if np.nanmax(days, initial=first) - first > 730:
            return 1970 + days / 365.2425, "year"
        return days - np.floor(first), f"days since {np.datetime64(int(np.floor(first)), 'D')}"

    def numbers(self) -> list[tuple[str, NDArray[np.float64], str]]:
        """Return the columns of numbers and times, with the unit of their values."""
        columns = []
        for name, use in self._proposal.uses.items():
            figures = self._proposal.profile.columns[name]
            if figures.lists or figures.others or not figures.filled:
                continue
            if figures.is_time and use.place != "dense":
                columns.append((name, *self.times(name)))
            elif use.place == "dense" or (
                use.place in ("label", "out") and figures.are_numbers and len(figures.distinct) > 2
            ):
                columns.append(
                    (name, np.array([number_of(text, NUMBERS) for text in self._sample.columns[name]]), name)
                )
        return columns

    def frequent(self) -> dict[str, ReportTable]:
        """Return the most frequent values of each category, with their rows and label rate in the sample."""
        rates: dict[str, ReportTable] = {}
        is_click = self._proposal.label.kind is LabelKind.click
        for name, use in self._proposal.uses.items():
            figures = self._proposal.profile.columns[name]
            is_repeated = 1 < len(figures.distinct) < figures.rows / 2
            is_shown = (
                use.place == "sparse" or (use.place == "out" and is_repeated) or (use.place == "label" and is_click)
            )
            if is_shown and not figures.is_time:
                rates[name] = self._frequent(name, use.entries, is_click)
        return rates

    def _frequent(self, name: str, entries: tuple[object, ...], is_click: bool) -> ReportTable:
        separator = next(
            (str(each["separator"]) for each in entries if isinstance(each, dict) and "separator" in each), ""
        )
        rows: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for value, label in zip(self._sample.columns[name], self.labels.tolist(), strict=True):
            members = value if isinstance(value, list) else value.split(separator) if separator else [value]
            for member in dict.fromkeys(members):
                rows[member] += 1
                sums[member] += label
        shown = [
            [
                repr(value[:SHOWN])[1:-1] if value else "(empty)",
                count(number),
                percent(number / max(1, len(self.labels))),
                percent(sums[value] / number) if is_click else f"{sums[value] / number:,.4g}",
            ]
            for value, number in rows.most_common(VALUES)
        ]
        more = f"{len(rows) - VALUES:,} more values in these rows." if len(rows) > VALUES else ""
        columns = ["Value", "Rows", "Share", "Label rate" if is_click else "Mean label"]
        return ReportTable(columns, shown, {1, 2, 3}, more)


def _moment(text: str, form: str | None) -> int | None:
    return None if not text or text.strip() in NULL_MARKS else read_time(text.strip(), form)


def _tiles(proposal: Proposal) -> list[tuple[str, str, str]]:
    profile, uses = proposal.profile, proposal.uses.values()
    places = Counter(use.place for use in uses)
    fields = profile.rows * len(profile.columns)
    missing = sum(figures.missing + _marked(proposal, name) for name, figures in profile.columns.items())
    rate = proposal.label.rate
    used = f"{places['sparse']} categories, {places['dense']} numbers, {places['out']} left out"
    label = ("Label rate", percent(rate, 2), f"of {proposal.label.column}")
    figures = profile.columns[proposal.label.column]
    number = ("Label", f"{digits(figures.low)} to {digits(figures.high)}", f"numbers of {proposal.label.column}")
    return [
        ("Rows", count(profile.rows), plural(len(profile.files.sources), "file")),
        ("Columns", count(len(profile.columns)), used),
        number if rate is None else label,
        ("Missing fields", percent(missing / fields), f"{missing:,} of {fields:,}"),
    ]


def _marked(proposal: Proposal, name: str) -> int:
    """Return the rows of a column whose text means no value."""
    marks = proposal.profile.columns[name].marks
    return sum(marks[mark] for mark in proposal.missing)


def _sentences(proposal: Proposal) -> list[tuple[str, str]]:
    sentences = [("", sentence) for sentence in order_sentences(proposal)]
    leaks = [name for name, use in proposal.uses.items() if use.auc is not None and use.auc > LEAK_AUC]
    if leaks:
        text = (
            f"Left out: {', '.join(leaks[:4])}, which alone predicts the label; add it if it is known before the label."
        )
        sentences.insert(0, ("bad", text))
    return [*sentences, *(("", note) for note in proposal.notes)]


def _columns(proposal: Proposal) -> ReportTable:
    rows = []
    for name, use in proposal.uses.items():
        figures = proposal.profile.columns[name]
        place = "time" if proposal.time is not None and proposal.time[0] == name else USES[use.place]
        about = "" if figures.distinct.is_exact else "about "
        rows.append(
            [
                name,
                place,
                f"{about}{len(figures.distinct):,}",
                percent((figures.missing + _marked(proposal, name)) / max(1, figures.rows)),
                NONE if use.auc is None else f"{use.auc:.3f}",
                ", ".join(repr(text[:SHOWN])[1:-1] for text in dict.fromkeys(figures.examples)) or NONE,
                use.reason,
            ]
        )
    note = "AUC: of the column's label rates alone, for each half of the sample by the rates of the other half."
    return ReportTable(
        ["Column", "Use", "Different values", "Missing", "AUC", "Examples", "Why"], rows, {2, 3, 4}, note
    )


def _label_charts(proposal: Proposal, values: _Values) -> list[Chart]:
    """Return the label rate over the rows in the order of the files, and over time."""
    name = "label rate" if proposal.label.kind is LabelKind.click else "mean label"
    charts = [
        _course(
            "rows",
            f"{name.capitalize()} in the order of the rows",
            "row",
            name,
            proposal.profile.sample.numbers,
            values.labels,
        )
    ]
    if proposal.time is not None:
        times, unit = values.times(proposal.time[0])
        charts.append(_course("time", f"{name.capitalize()} by {proposal.time[0]}", unit, name, times, values.labels))
    for column, numbers, _ in values.numbers()[:MAX_CHARTS]:
        is_number = proposal.uses[column].place == "dense"
        if is_number and len(np.unique(numbers[np.isfinite(numbers)])) > 1:
            title = f"{name.capitalize()} by {column}"
            charts.append(_course(f"by_{column}", title, column, name, numbers, values.labels))
    return charts


def _course(key: str, title: str, x: str, y: str, places: NDArray[np.generic], labels: NDArray[np.float64]) -> Chart:
    """Return the mean label by place: of each place where there are few, otherwise of equally many rows."""
    order = np.argsort(places, kind="stable")
    order = order[np.isfinite(places[order].astype(np.float64))]
    _, starts = np.unique(places[order], return_index=True)
    are_few = len(starts) <= STRETCHES
    stretches = np.array_split(order, starts[1:] if are_few else STRETCHES) if len(order) else []
    middle = [float(np.mean(places[part].astype(np.float64))) for part in stretches]
    series = Series(y, middle, [float(labels[part].mean()) for part in stretches], "points")
    note = (
        f"Each point is the mean of {'one value' if are_few else f'{len(stretches[0]):,} rows'}." if stretches else ""
    )
    return Chart(f"label_{key}", title, x, y, [series], note, steps=False, from_zero=True)


def _distribution(name: str, numbers: NDArray[np.float64], unit: str) -> Chart:
    """Return a histogram of a column; values beyond the outer percentiles are in the outer bars."""
    finite = numbers[np.isfinite(numbers)]
    chart = Chart(f"distribution_{name}", name, unit, "rows", steps=False, from_zero=True, absent="as it has no value")
    if not len(finite):
        return chart
    is_time = unit != name
    low, high = np.quantile(finite, [0, 1] if is_time else [0.005, 0.995])
    is_cut = low > finite.min() or high < finite.max()
    if low == high:
        reach = max(0.5, abs(low) / 1000)
        low, high = low - reach, high + reach
    bins = BINS
    if not is_time and high - low < 2 * BINS and (finite == np.round(finite)).all():
        low, high = np.floor(low) - 0.5, np.ceil(high) + 0.5
        bins = max(1, round(high - low))  # a bar for each whole number
    counts, edges = np.histogram(np.clip(finite, low, high), bins, (low, high))
    chart.series = [Series("rows", ((edges[1:] + edges[:-1]) / 2).tolist(), counts.tolist(), "bars")]
    chart.note = "" if is_time else f"From {digits(float(finite.min()))} to {digits(float(finite.max()))}."
    if is_cut:
        chart.note += " The outer bars hold the values beyond."
    return chart
