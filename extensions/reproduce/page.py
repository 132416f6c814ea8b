"""The page of a reproduction, in the report's style."""

from collections.abc import Sequence
from pathlib import Path

from app.kinds.metrics import AUC, HR, LOGLOSS, MAE, METRICS, NDCG, NE, RMSE
from app.record.documents import DONE
from app.report.charts import Chart, Series, quality_charts
from app.report.compare import differences
from app.report.page import render
from app.report.side_by_side import RUN_COLORS, short
from app.report.tables import ReportTable
from app.report.words import NOT_MEASURED, count, duration, figure, plural
from extensions.reproduce.documents import Reproduction, SeedFigure
from extensions.reproduce.figures import DIGITS, Finished
from extensions.reproduce.keys import ReproduceConfig

NONE = "–"
SHORTEST = 12  # characters of a digest
VERSIONS = ("python", "torch", "torchrec", "fbgemm-gpu", "fbgemm_gpu-cpu", "numpy")


def reproduction_page(
    config: ReproduceConfig, document: Reproduction, runs: Sequence[Finished], directory: Path
) -> str:
    """The HTML of a reproduction whose files are in `directory`; `runs` are its finished ones."""
    charts = _charts(document, runs)
    differing = differences([each.run for each in runs])[0] if runs else {}
    differing.pop("train.seed", None)
    return render(
        Path(__file__).with_name("reproduce.html.j2"),
        directory,
        charts,
        title=f"{document.recipe} at {plural(document.seeds, 'seed')}",
        tiles=_tiles(document),
        sentences=document.verdict,
        figures=_figures(document),
        seeds=_seeds(document),
        source=_beside_source(config, document),
        differing=ReportTable(
            ["Key", *(f"seed {each.seed}" for each in runs)],
            [[key, *map(short, row)] for key, row in differing.items()],
            set(),
        ),
        charts_of_seeds=charts,
        command=document.command,
    )


def _tiles(document: Reproduction) -> list[tuple[str, str, str]]:
    """The main figures: name, value, remark."""
    tiles = []
    for metric in (RMSE, MAE) if document.main == RMSE else (AUC, LOGLOSS, NE):
        main = document.figure_of(metric)
        remark = NOT_MEASURED if main is None else f"{main.split}; 95% interval {_interval(main)}"
        tiles.append((METRICS[metric].title, _value(main.mean if main else None), remark))
    main = document.figure_of(document.main)
    published = main.published if main else None
    inside = {True: "inside", False: "outside", None: "no verdict" if published is not None else "none"}
    tiles.append(
        (f"Published {METRICS[document.main].label}", _value(published), inside[main.inside if main else None])
    )
    tiles.append(("Seeds done", str(sum(run.status in DONE for run in document.runs)), f"of {document.seeds}"))
    return tiles


def _value(value: float | None) -> str:
    return NONE if value is None else figure(value, DIGITS)


def _interval(each: SeedFigure) -> str:
    return NONE if each.low is None else f"{figure(each.low, DIGITS)} to {figure(each.high, DIGITS)}"


def _figures(document: Reproduction) -> ReportTable:
    verdicts = {True: "inside", False: "outside", None: "no verdict"}
    rows = [
        [
            f"{METRICS[each.metric].title} of {each.split}",
            _value(each.mean),
            _value(each.std),
            _interval(each),
            _value(each.published),
            NONE if each.tolerance is None else f"± {each.tolerance}",
            "none published" if each.published is None else verdicts[each.inside],
        ]
        for each in document.figures
    ]
    columns = ["Figure", "Mean", "Standard deviation", "95% interval of the mean", "Published", "Tolerance", "Verdict"]
    note = (
        "Of the model that each run serves, over the finished seeds; the interval by Student's t. Inside: the "
        "published figure lies in the interval, widened by the tolerance at both ends; or, where it is the target of "
        "training, each run reached it."
    )
    return ReportTable(columns, rows, {1, 2, 3, 4, 5}, note)


def _seeds(document: Reproduction) -> ReportTable:
    figures = [each for each in document.figures if each.metric in (AUC, LOGLOSS, RMSE, MAE, HR, NDCG)]
    rows = [
        [
            str(run.seed),
            run.status,
            *(_value(each.values.get(str(run.seed))) for each in figures),
            count(run.steps),
            NONE if run.samples_to_target is None else count(run.samples_to_target),
            count(run.samples_per_second),
            duration(run.seconds),
            NOT_MEASURED if run.joules is None else f"{run.joules:,.0f} J",
            run.error or NONE,
        ]
        for run in document.runs
    ]
    names = [f"{METRICS[each.metric].title} of {each.split}" for each in figures]
    columns = ["Seed", "Status", *names, "Steps", "Samples to target", "Samples/s, global", "Time", "Energy", "Remark"]
    note = "Each run has a report of its own: seed_N/report.html."
    return ReportTable(columns, rows, set(range(2, len(columns) - 1)), note)


def _beside_source(config: ReproduceConfig, document: Reproduction) -> ReportTable:
    """What the source has, and what these runs have."""
    source, data = document.published, document.dataset
    rows = data.rows if data else {}
    published = config.published
    splits = ", ".join(f"{name} {value:,}" for name, value in rows.items()) or NOT_MEASURED
    versions = ", ".join(f"{name} {document.versions[name]}" for name in VERSIONS if document.versions.get(name))
    rates = [run.samples_per_second for run in document.runs if run.samples_per_second is not None]
    rate = f"{count(sum(rates) / len(rates))} (mean)" if rates else NOT_MEASURED
    unknown = "not said"
    entries = [
        ["Source", source.source or "none", "these runs"],
        [
            "Data",
            source.data or unknown,
            f"digest {(data.digest or 'none')[:SHORTEST]}…, {data.encoding or 'own'}" if data else NOT_MEASURED,
        ],
        ["Training rows", count(published.train_rows) if published.train_rows else unknown, splits],
        [
            "MD5 of the files",
            ", ".join(map(_short, source.md5)) or unknown,
            ", ".join(map(_short, data.md5 if data else [])) or "no files given by split",
        ],
        ["Hardware", source.hardware or unknown, document.machine or NOT_MEASURED],
        ["Versions", unknown, versions or NOT_MEASURED],
        [
            "Code",
            unknown,
            (document.commit or "more than one commit, or none") + (" with changes" if document.dirty else ""),
        ],
        ["Samples/s, global", count(published.samples_per_second) if published.samples_per_second else unknown, rate],
    ]
    return ReportTable(["", "The source", "Here"], entries, set())


def _short(md5: str) -> str:
    return f"{md5[:SHORTEST]}…"


def _charts(document: Reproduction, runs: Sequence[Finished]) -> list[Chart]:
    """The AUC, or RMSE, of each seed with the mean's interval, and the evaluations of all runs over the steps."""
    charts = []
    main, label = document.figure_of(document.main), METRICS[document.main].label
    if main is not None:
        seeds = [float(seed) for seed, value in main.values.items() if value is not None]
        values = [value for value in main.values.values() if value is not None]
        chart = Chart("seeds", f"{label} of {main.split} by seed", "seed", label, steps=False)
        chart.series = [Series(label, seeds, list(values), "dots", 0)]
        ends = [0.5, *seeds, document.seeds + 0.5]
        if main.low is not None:
            chart.series += [
                Series("lower end", ends, [main.low] * len(ends), "edge", 0),
                Series("upper end", ends, [main.high] * len(ends), "edge", 0),
            ]
            chart.band = ("upper end", "lower end")
            chart.note = "Band: the 95% interval of the mean."
        if main.published is not None:
            chart.series.append(Series("published", ends, [main.published] * len(ends), "reference", 4))
        charts.append(chart)
    course = Chart("course", f"{label} of the evaluations", "step", label)
    for number, each in enumerate(runs):
        (of_run,) = [chart for chart in quality_charts(each.run) if chart.key == document.main]
        (series,) = [series for series in of_run.series if series.kind != "reference"]
        series.name, series.color, series.kind = f"seed {each.seed}", RUN_COLORS[number % len(RUN_COLORS)], "line"
        course.series.append(series)
    return [*charts, course]
