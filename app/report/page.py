"""Reports as HTML: each is one self-contained file, written whole or not at all; their tables."""

import datetime
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from app.config.kinds import METRICS, additions
from app.config.sharding import PlannedTable
from app.record.documents import TableSize
from app.report import charts
from app.report.charts import Chart
from app.report.read import (
    METERS,
    NOT_MEASURED,
    RunFiles,
    count,
    devices,
    duration,
    figure,
    percent,
    plural,
    precision,
    read_run,
    refusing_other_versions,
    size,
)
from common.documents import plain_object
from common.files import write_atomically

WIRE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}  # bytes of a value under sharding.qcomm


@dataclass
class ReportTable:
    """Rows of text; `numeric` columns are aligned to the right."""

    columns: list[str]
    rows: list[list[str]]
    numeric: set[int]
    note: str = ""


def traffic(run: RunFiles, table: TableSize, entry: PlannedTable | None) -> tuple[float, float, float]:
    """Return bytes per step over all processes: weights read, weights written, vectors or gradients exchanged.

    A row is on one process; each shard adds a part to a bag's vector, which is exchanged forward and backward. Rows are
    read twice: by the lookup, and by the update that writes them.
    """
    samples, world_size, dim = run.global_batch_size, run.world_size, table.embedding_dim
    ids = samples * table.ids_per_sample
    written = ids * (table.bytes / table.num_embeddings)
    if entry is not None and entry.type == "data_parallel":
        return 2 * written, written, float(2 * (world_size - 1) * table.bytes)  # all-reduce in a ring
    shards = entry.shards if entry else []
    values = ids * dim if table.by_id else samples * table.features * (sum(shard.columns for shard in shards) or dim)
    qcomm = run.config["sharding"].get("qcomm") or {}
    width = sum(WIRE_BYTES[qcomm.get(way, "fp32")] for way in ("forward", "backward"))
    return 2 * written, written, float(values * width * (world_size - 1) / world_size)


def rank_loads(run: RunFiles) -> ReportTable:
    """Return number and bytes of the tables on each rank; of a sharded table each rank counts an equal part."""
    plan, tables = run.manifest.plan, run.manifest.tables
    load, counts = [0.0] * run.world_size, [0] * run.world_size
    for name, table in tables.items():
        entry = plan.get(name)
        ranks = (entry.ranks if entry else None) or range(run.world_size)
        is_copied = entry is not None and entry.type == "data_parallel"
        for rank in ranks:
            counts[rank] += 1
            load[rank] += table.bytes if is_copied else table.bytes / len(ranks)
    mean = sum(load) / len(load) or 1.0
    rows = [[str(rank), str(counts[rank]), size(load[rank]), f"{load[rank] / mean:.2f}"] for rank in range(len(load))]
    return ReportTable(["Rank", "Tables", "Weights", "Of the mean"], rows, {0, 1, 2, 3})


def halves(table: ReportTable) -> list[ReportTable]:
    """Split a long table into two that stand side by side if there is space."""
    middle = -(-len(table.rows) // 2)
    return [replace(table, rows=table.rows[:middle]), replace(table, rows=table.rows[middle:])]


def replay(run: RunFiles) -> list[str]:
    """Return shell commands: check out the run's commit, if it is known, train again, and compare."""
    # The arguments are in a command of make, which takes $$ for a $.
    arguments = " ".join(shlex.quote(argument) for argument in run.manifest.argv[1:]).replace("$", "$$")
    processes = f"NPROC={run.world_size} " if run.world_size > 1 else ""
    return [
        *([f"git checkout {run.manifest.commit}"] if run.manifest.commit else []),
        f"make train {processes}" + (f"ARGS={shlex.quote(arguments)}" if arguments else ""),
        f"make verify {processes}RUN={shlex.quote(str(run.directory))}",
    ]


EXCHANGE = "communication"  # key in summary.json's phase_seconds
COLORS = {"input wait": 5, "forward": 0, "backward": 1, "optimizer": 2, "exchange": 4, "host": 3}


def step_parts(run: RunFiles) -> dict[str, tuple[float, float, int]]:
    """Return the parts of a mean step in their order, which add up to it; none if they were not measured.

    Of each by name: milliseconds, share, and place in the palette of report.css. Exchanges happen within forward and
    backward, so they are subtracted from both in proportion.
    """
    rates, phases = run.throughput, dict(run.summary.phase_seconds or {}) if run.summary else {}
    steps, wait = rates["steps_per_second"], rates["input_wait_fraction"]
    forward, backward, optimizer = (phases.get(name) or 0.0 for name in ("forward", "backward", "optimizer"))
    if not steps or wait is None or not forward + backward:
        return {}
    exchange = min(phases.get(EXCHANGE) or 0.0, forward + backward)
    computed = 1 - exchange / (forward + backward)
    seconds = {
        "input wait": wait / steps,
        "forward": forward * computed,
        "backward": backward * computed,
        "exchange": exchange,
        "optimizer": optimizer,
    }
    seconds["host"] = max(0.0, 1 / steps - sum(seconds.values()))
    whole = sum(seconds.values())
    return {
        name: (1e3 * duration, duration / whole, COLORS[name])
        for name, duration in seconds.items()
        if duration or name != "exchange"
    }


def energy(run: RunFiles) -> str:
    """Return samples per second and watt, with the mean power; or why it was not measured."""
    watts, rate = run.watts, run.rate
    if not watts or rate is None:
        reason = METERS.get(str(run.manifest.platform), "") if run.compares_machines else ""
        return f"{NOT_MEASURED}, {reason}" if reason and not watts else NOT_MEASURED
    return f"{figure(rate / watts, 1)} at {watts:,.1f} W"


ASSETS = Path(__file__).parent / "assets"
# What templates call.
FORMATS: tuple[Callable[..., Any], ...] = (count, devices, duration, figure, percent, plural, precision, size)
FORMATS += (charts.baseline, energy, step_parts, traffic)
REPORT = "report.html"
LONG_WORD = re.compile(r"(\S{25,})")  # may be broken; shorter words never are
PART = re.compile(r"[^/._-]{0,11}[/._-]+|[^/._-]{1,12}")


def run_page(run: RunFiles) -> str:
    """Return the report of one run as HTML."""
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
        step=step_parts(run),
        energy=energy(run),
        sentences=charts.sentences(run),
        against=against(run),
        folded=[table for addition in additions(run) for table in addition.tables],
        ranks=rank_loads(run),
        replay=replay(run),
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
    environment.globals |= {
        "asset": lambda name: Markup((ASSETS / name).read_text(encoding="utf-8")),  # our own files
        "metrics": METRICS,
        "parts_of_step": COLORS,
        **{function.__name__: function for function in FORMATS},
    }
    return environment.get_template(template.name).render(
        directory=str(directory),
        written=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        charts={chart.key: chart.plain() for chart in charts},
        **content,
    )


def breakable(text: object) -> Markup:
    """Return the text as HTML in which long words may break, after separators or parts, to fit a narrow column."""
    # The pattern captures, so the long words stand at the odd places.
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


def against(run: RunFiles) -> ReportTable:
    """Return the run beside constant, simpler, ground-truth and published models."""
    keys, rows = run.evaluation.compared, []
    for name, figures_of_row, rate, remark in charts.comparisons(run):
        values = ["–" if figures_of_row[key] is None else figure(figures_of_row[key]) for key in keys]
        rows.append([name, *values, "–" if rate is None else count(rate), remark])
    columns = ["", *(METRICS[key].title for key in keys), "Samples/s (global)", ""]
    return ReportTable(columns, rows, set(range(1, len(keys) + 2)))
