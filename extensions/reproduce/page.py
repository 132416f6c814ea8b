"""The page of a reproduction, in the report's style."""

from collections.abc import Sequence
from pathlib import Path

from app.kinds.metrics import AUC, HR, LOGLOSS, MAE, NDCG, RMSE
from app.report.compare import differences
from app.report.page import render
from app.report.side_by_side import short
from app.report.tables import ReportTable
from app.report.words import NOT_MEASURED, count, duration, figure, plural
from extensions.reproduce.documents import SHORTEST, VERDICTS, Reproduction
from extensions.reproduce.figures import DIGITS, Finished
from extensions.reproduce.keys import ReproduceConfig

NONE = "–"


def reproduction_page(
    config: ReproduceConfig, document: Reproduction, runs: Sequence[Finished], directory: Path
) -> str:
    """Return the HTML of a reproduction with files in `directory`; `runs` are its finished runs."""
    differing = differences([each.run for each in runs])[0] if runs else {}
    differing.pop("train.seed", None)
    return render(
        Path(__file__).with_name("reproduce.html.j2"),
        directory,
        [],
        title=f"{document.recipe} at {plural(document.seeds, 'seed')}",
        sentences=document.verdict,
        figures=_figures(document),
        seeds=_seeds(document),
        source=_beside_source(config, document),
        differing=ReportTable(
            ["Key", *(f"seed {each.seed}" for each in runs)],
            [[key, *map(short, row)] for key, row in differing.items()],
            set(),
        ),
        command=document.command,
    )


def _value(value: float | None) -> str:
    return NONE if value is None else figure(value, DIGITS)


def _figures(document: Reproduction) -> ReportTable:
    rows = [
        [
            each.label,
            _value(each.mean),
            _value(each.std),
            NONE if each.low is None else f"{figure(each.low, DIGITS)} to {figure(each.high, DIGITS)}",
            _value(each.published),
            NONE if each.tolerance is None else f"± {each.tolerance}",
            "none published" if each.published is None else VERDICTS[each.inside],
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
    columns = [
        "Seed",
        "Status",
        *(each.label for each in figures),
        "Steps",
        "Samples to target",
        "Samples/s, global",
        "Time",
    ]
    columns += ["Energy", "Remark"]
    note = "Each run has a report of its own: seed_N/report.html."
    return ReportTable(columns, rows, set(range(2, len(columns) - 1)), note)


def _beside_source(config: ReproduceConfig, document: Reproduction) -> ReportTable:
    """Compare data, hardware and speed of the source with those of these runs."""
    published, source, data = config.published, document.published, document.dataset
    rows = ", ".join(f"{name} {value:,}" for name, value in (data.rows if data else {}).items())
    rates = [run.samples_per_second for run in document.runs if run.samples_per_second is not None]
    md5s = [", ".join(f"{md5[:SHORTEST]}…" for md5 in each.md5) if each else "" for each in (source, data)]
    about_data = f"digest {(data.digest or 'none')[:SHORTEST]}…, {data.encoding or 'own'}" if data else ""
    versions = " ".join(f"{name} {version}" for name, version in document.versions.items() if version)
    commit = (document.commit or "more than one commit, or none") + (" with changes" if document.dirty else "")
    entries: list[tuple[str, object, object]] = [
        ("Source", source.source or "none", "these runs"),
        ("Data", source.data, about_data),
        ("Training rows", published.train_rows and count(published.train_rows), rows),
        ("MD5 of the files", md5s[0], md5s[1] or "no files given by split"),
        ("Hardware", source.hardware, document.machine),
        ("Versions", None, versions),
        ("Code", None, commit),
        (
            "Samples/s, global",
            published.samples_per_second and count(published.samples_per_second),
            rates and f"{count(sum(rates) / len(rates))} (mean)",
        ),
    ]
    cells = [[str(name), str(theirs or "not said"), str(ours or NOT_MEASURED)] for name, theirs, ours in entries]
    return ReportTable(["", "The source", "Here"], cells, set())
