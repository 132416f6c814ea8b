"""Reports as HTML: each is one self-contained file, written whole or not at all."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from app.kinds.metrics import ACCURACY, BASE_RATE, LABEL_DEVIATION, LOGLOSS, MAE, METRICS, NE, RMSE
from app.metrics.documents import EvaluationFigures
from app.report import charts, speed, tables, verdict
from app.report.additions import additions
from app.report.charts import Chart
from app.report.read import RunFiles, read_run, refusing_other_versions
from app.report.tables import ReportTable
from app.report.words import NOT_MEASURED, count, figure, percent
from common.documents import plain_object
from common.files import write_atomically

ASSETS = Path(__file__).parent / "assets"
REPORT = "report.html"
NO_BREAK = "\u00a0"  # space at which a line does not end
LONG_WORD = re.compile(r"(\S{25,})")  # may be broken; shorter words never are
PART = re.compile(r"[^/._-]{0,11}[/._-]+|[^/._-]{1,12}")


def run_page(run: RunFiles) -> str:
    """Return the report of one run."""
    groups = {
        "quality": charts.quality_charts(run),
        "course": charts.course_charts(run),
        "evaluation": charts.evaluation_charts(run),
    }
    return render(
        ASSETS / "run.html.j2",
        run.directory,
        [chart for group in groups.values() for chart in group],
        title=run.name,
        run=run,
        about=tables.about(run),
        tiles=_tiles(run),
        step=speed.step_parts(run),
        energy=speed.energy(run),
        sentences=verdict.sentences(run),
        against=_against(run),
        folded=[table for addition in additions(run) for table in addition.tables],
        thinned=charts.thinned(run),
        figures=tables.halves(tables.figures(run)),
        deepspark=ReportTable(tables.DEEPSPARK_COLUMNS, [tables.deepspark(run)], set()),
        tables=tables.embedding_tables(run),
        trained=tables.trained_tables(run),
        ranks=tables.rank_loads(run),
        replay=tables.replay(run),
        caveats=tables.replay_caveats(run),
        manifest=json.dumps(plain_object(run.manifest), indent=1, ensure_ascii=False),
        config=yaml.safe_dump(run.config, sort_keys=False),
        **groups,
    )


def render(template: Path, directory: Path, charts: list[Chart], **content: Any) -> str:
    """Render a page from its template, which may extend those of `ASSETS`, with the charts' numbers as JSON."""
    loader = jinja2.FileSystemLoader([template.parent, ASSETS])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = breakable
    environment.globals["asset"] = lambda name: Markup((ASSETS / name).read_text(encoding="utf-8"))  # our own files
    return environment.get_template(template.name).render(
        directory=str(directory),
        written=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        charts={chart.key: chart.plain() for chart in charts},
        **content,
    )


def breakable(text: object) -> Markup:
    """Return the text as HTML in which long words may break, after separators or parts, to fit a narrow column."""
    parts = enumerate(LONG_WORD.split(str(text)))
    return Markup("").join(Markup("<wbr>").join(PART.findall(part)) if place % 2 else part for place, part in parts)


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write a run's report from its directory's files, to `out` or else its report.html; return the path."""
    run = read_run(directory)
    with refusing_other_versions(str(directory)):
        page = run_page(run)
    return write_page(out or directory / REPORT, page)


def write_page(path: Path, page: str) -> Path:
    """Write a page to disk; return the path."""
    write_atomically(path, page.encode())
    return path


def _tiles(run: RunFiles) -> list[tuple[str, str, str]]:
    """Return the main figures: name, value, remark."""
    evaluation, rates = run.evaluation, run.throughput
    error = run.auc_standard_error
    split = evaluation.split or "no evaluation"
    rate = rates.samples_per_second
    per_device = rates.samples_per_second_per_device
    best, last = run.best, run.last_evaluation
    of = f", step {count(evaluation.figure('step'))}" if evaluation.figure("step") is not None else ""
    main = METRICS[evaluation.main].label
    tiles: list[tuple[str, float | None, str]] = [
        (main, evaluation.main_value, split + of + (f", ±{NO_BREAK}{error:.4f}" if error else "")),
    ]
    # One evaluation may be served, the best and the last; each is shown once.
    if best is not None and (best.step != evaluation.step or best.label != main):
        tiles.append((f"Best {best.label}", best.of_monitor, f"at step {count(best.step)}"))
    if last.is_measured and last.step != evaluation.step:
        tiles.append((f"Last {main}", last.main_value, f"at step {count(last.figure('step'))}"))
    of_clicks = [
        ("Normalised entropy", evaluation.figure(NE), "below 1 beats the base rate"),
        ("Logloss", evaluation.figure(LOGLOSS), "nats a sample"),
        ("Accuracy", evaluation.figure(ACCURACY), f"majority {percent(_majority(evaluation))}"),
    ]
    of_numbers = [
        (METRICS[MAE].label, evaluation.figure(MAE), "mean absolute error"),
        ("Labels' deviation", evaluation.figure(LABEL_DEVIATION), f"the {METRICS[RMSE].label} of their mean"),
    ]
    tiles += of_numbers if evaluation.main == RMSE else of_clicks
    return [
        *((label, "–" if value is None else figure(value), remark) for label, value, remark in tiles),
        (
            "Throughput",
            "–" if rate is None else count(rate),
            NOT_MEASURED if rate is None else f"samples/s global; {count(per_device)} a device × {run.world_size}",
        ),
        (
            "Step, median",
            "–" if rates.step_ms_p50 is None else f"{figure(rates.step_ms_p50, 2)} ms",
            NOT_MEASURED
            if rates.step_ms_p95 is None
            else f"95th percentile {figure(rates.step_ms_p95, 2)}{NO_BREAK}ms",
        ),
    ]


def _majority(evaluation: EvaluationFigures) -> float | None:
    return verdict.baseline(evaluation.figure(BASE_RATE))[ACCURACY]


def _against(run: RunFiles) -> ReportTable:
    names = run.evaluation.compared
    rows = [
        [
            row.name,
            *("–" if row.figures[key] is None else figure(row.figures[key]) for key in names),
            "–" if row.samples_per_second is None else count(row.samples_per_second),
            row.remark,
        ]
        for row in verdict.comparisons(run)
    ]
    return ReportTable(
        ["", *(METRICS[key].title for key in names), "Samples/s (global)", ""],
        rows,
        set(range(1, len(names) + 2)),
    )
