"""The report of a run: whole, alone, small; its charts, its tables, and what it says first."""

import html.parser
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from app.config.sharding import PlannedTable
from app.metrics.documents import EvaluationFigures
from app.record.documents import TableSize
from app.report import charts
from app.report.page import step_parts, traffic, write_report
from app.report.read import RunFiles, read_run
from common.documents import convert
from tests.app.conftest import SMALL, Command
from tests.app.report.runs import PLANNED, write_run
from tests.browser import DRAWN_BY, PICTURES, drawing_digest
from tests.error_lines import refused

CHARTS = ["logloss", "accuracy", "auc", "ne", "gradient_norm", "calibration", "scores", "roc", "pr", "lr", "throughput"]
CHARTS += ["step_times", "phases", "input_wait", "memory", "power"]


class Page(html.parser.HTMLParser):
    """What a page refers to, its text and its charts' numbers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        match = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
        assert match
        self.charts = json.loads(match[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        values = dict(attrs)
        self.references += [str(values[key]) for key in ("src", "href", "action", "data", "srcset") if key in values]

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.mark.medium
def test_the_report_of_a_real_run(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=real", "train.eval_every_steps=10"]
    process = run_app("train", *overrides, environment={"MAKE_STARTED": str(time.time())})
    times, last = process.stderr.splitlines()[-2:]
    assert last == "report: runs/real/report.html"
    sections = ["set-up", "imports", "data", "training", "evaluation", "report", "baselines", "rest"]
    assert re.findall(r"([\w-]+) \d+\.\d s", times.removeprefix("time: ")) == sections
    assert (tmp_path / "runs/real/log.txt").read_text().count("report: runs/real/report.html") == 1
    page = Page((tmp_path / "runs/real/report.html").read_text())
    assert set(page.references) <= {"data:,", "#main"}
    assert sorted(page.charts) == sorted(CHARTS)
    summary = json.loads((tmp_path / "runs/real/summary.json").read_bytes())
    for figure in (
        f"{summary['eval']['auc']:.4f}",
        f"{summary['eval']['ne']:.4f}",
        f"{summary['throughput']['samples_per_second']:,.0f}",
    ):
        assert figure in page.text
    events = [json.loads(line) for line in (tmp_path / "runs/real/metrics.jsonl").read_text().splitlines()]
    train = [event for event in events if event["event"] == "train"]
    series = {key: {s["name"]: s for s in page.charts[key]["series"]} for key in CHARTS}
    assert series["logloss"]["train"]["y"] == pytest.approx([event["logloss"] for event in train], rel=1e-5)
    assert series["accuracy"]["train"]["y"] == pytest.approx([event["accuracy"] for event in train], rel=1e-5)
    assert series["accuracy"]["train"]["y"] == [
        pytest.approx(round(64 * y) / 64) for y in series["accuracy"]["train"]["y"]
    ]
    assert series["auc"]["val"]["x"] == [event["step"] for event in events if event["event"] == "eval"]
    assert sum(series["step_times"]["steps"]["y"]) == len(train) - 10
    assert all(f"t_cat_{i}" in page.text for i in range(3))
    assert "make verify RUN=" in page.text
    assert "not measured" in page.text  # power


def set_logloss(run: Path, window: int, logloss: float | None) -> None:
    """Give a window another logloss; None: NaN was skipped."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[window] = json.dumps({**json.loads(lines[window]), "loss": logloss, "logloss": logloss}) + "\n"
    (run / "metrics.jsonl").write_text("".join(lines))


def test_whatever_a_run_is_called_stays_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    run = write_run(tmp_path / "run", manifest={"image": evil, "argv": ["train.py", f"run.name={evil}"]})
    text = write_report(run).read_text()
    assert evil not in text
    assert evil in Page(text).text


def test_the_pictures_in_the_docs_are_of_todays_report() -> None:
    """Else: make train, then .venv/bin/python -m tests.browser runs/quickstart/report.html docs/images."""
    images = Path(__file__).parents[3] / "docs/images"
    assert (images / DRAWN_BY).read_text().strip() == drawing_digest(), (
        "the report's pictures have aged; take them again"
    )
    assert all((images / f"report-{name}.png").exists() for name in PICTURES)


@settings(max_examples=50)
@given(samples=st.integers(1, 10**9), part=st.floats(0, 1))
def test_wilsons_interval_is_scipys(samples: int, part: float) -> None:
    positives = round(part * samples)
    interval = stats.binomtest(positives, samples).proportion_ci(method="wilson")
    assert charts.wilson(positives / samples, samples) == pytest.approx(
        (interval.low, interval.high), rel=1e-4, abs=1e-9
    )


@settings(max_examples=50)
@given(
    lines=st.lists(
        st.lists(st.floats(0.1, 0.3) | st.floats(-0.3, -0.1), min_size=4, max_size=60), min_size=1, max_size=4
    ),
    outlier=st.sampled_from([970.0, -970.0]),
    place=st.integers(0, 3),
)
def test_one_value_far_out_does_not_flatten_a_chart(lines: list[list[float]], outlier: float, place: int) -> None:
    inliers = [value for line in lines for value in line]
    lines[place % len(lines)][place] = outlier
    chart = charts.Chart(
        "x", "X", "step", "y", [charts.Series(f"line {n}", [*range(len(y))], [*y]) for n, y in enumerate(lines)]
    )
    rest = [value for line in lines for value in line if value != outlier]
    chart.cut_outliers()
    assert chart.limits == (min(rest), max(rest))
    assert max(map(abs, inliers)) < 1
    assert "One value is beyond the axis, the largest" in chart.note
    assert f"{outlier:.4g} at step {place}" in chart.note


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", step_ms=20.0))
    parts = step_parts(run)
    assert run.summary is not None
    whole = 1e3 / (run.throughput["steps_per_second"] or 0)
    assert sum(part[0] for part in parts.values()) == pytest.approx(whole)
    assert sum(part[1] for part in parts.values()) == pytest.approx(1)
    assert list(parts) == ["input wait", "forward", "backward", "optimizer", "host"]
    assert parts["forward"][0] == pytest.approx(0.3 * 20)
    assert parts["input wait"][0] == pytest.approx(whole * (run.throughput["input_wait_fraction"] or 0))
    run.summary.phase_seconds = {**(run.summary.phase_seconds or {}), "communication": 0.004}
    exchanged = step_parts(run)
    assert exchanged["exchange"][0] == pytest.approx(4)
    assert exchanged["forward"][0] == pytest.approx(0.3 * 20 - 4 * 3 / 8)
    assert sum(part[0] for part in exchanged.values()) == pytest.approx(whole)
    run.summary.phase_seconds = {"forward": None, "backward": None, "optimizer": None, "communication": None}
    assert step_parts(run) == {}


ROWS, DIM, BATCH = 8, 16, 32
SHARDS = {
    "table_wise": [[1, 0, 0, ROWS, DIM]],
    "row_wise": [[rank, rank * 4, 0, 4, DIM] for rank in range(2)],
    "column_wise": [[rank, 0, rank * 8, ROWS, 8] for rank in range(2)],
    "data_parallel": [[rank, 0, 0, ROWS, DIM] for rank in range(2)],
}


def sent(kind: str, ids: int, by_id: bool, widths: tuple[int, int]) -> int:
    """Bytes between two processes: each sample's ids, one after another over the table's rows, from each shard."""
    if kind == "data_parallel":  # each process sends its half of the gradient, then the half of the sum that it made
        return 2 * 2 * ROWS * DIM * 4 // 2
    total, row = 0, 0
    for sample in range(BATCH):
        sample_rank = sample * 2 // BATCH
        rows = [(row + k) % ROWS for k in range(ids)]
        row += ids
        for rank, first, _, height, columns in SHARDS[kind]:
            if rank != sample_rank:
                vectors = sum(first <= one < first + height for one in rows) if by_id else 1
                total += vectors * columns * sum(widths)
    return total


@pytest.mark.parametrize(("qcomm", "widths"), [([], (4, 4)), (["forward=fp16"], (2, 4)), (["backward=bf16"], (4, 2))])
@pytest.mark.parametrize(("ids", "by_id"), [(1, False), (6, False), (6, True), (1, True)])
@pytest.mark.parametrize("kind", list(SHARDS))
def test_what_processes_exchange_is_counted(
    tmp_path: Path, kind: str, ids: int, by_id: bool, qcomm: list[str], widths: tuple[int, int]
) -> None:
    overrides = [f"train.global_batch_size={BATCH}", *(f"sharding.qcomm.{key}" for key in qcomm)]
    run = read_run(write_run(tmp_path / "a", *overrides, world_size=2))
    table: dict[str, Any] = {"features": 1, "ids_per_sample": float(ids), "num_embeddings": ROWS, "embedding_dim": DIM}
    table |= {"bytes": ROWS * DIM * 4, "by_id": by_id}
    plan = {**PLANNED, "type": kind, "shards": SHARDS[kind]}
    bytes_read, bytes_written, exchanged = traffic(run, convert(table, TableSize), convert(plan, PlannedTable))
    assert exchanged == sent(kind, ids, by_id, widths)
    assert (bytes_read, bytes_written) == (2 * BATCH * ids * DIM * 4, BATCH * ids * DIM * 4)


PUBLISHED = ["published.source=A table", "published.auc=0.76", "published.tolerance=0.02", "published.train_rows=10000"]


def said(run: RunFiles, *words: str) -> tuple[str, str]:
    """The one sentence that has these words, with its kind."""
    (sentence,) = [(kind, text) for kind, text in charts.sentences(run) if all(word in text for word in words)]
    return sentence


def test_the_majority_class_is_scikit_learns_dummy() -> None:
    labels = (np.random.default_rng(0).random(1000) < 0.2).astype(int)
    nothing = np.zeros((1000, 1))
    dummy = DummyClassifier(strategy="prior").fit(nothing, labels)
    preds = dummy.predict_proba(nothing)[:, 1]
    figures = charts.baseline(float(labels.mean()))
    assert figures["accuracy"] == pytest.approx(accuracy_score(labels, dummy.predict(nothing)))
    assert figures["logloss"] == pytest.approx(log_loss(labels, preds))
    assert figures["auc"] == roc_auc_score(labels, preds)
    assert figures["ne"] == 1


def test_a_run_better_than_the_majority_and_one_that_is_not(tmp_path: Path) -> None:
    good = read_run(write_run(tmp_path / "good", gain=1.2))
    assert said(good, "than the majority class")[0] == "good"
    none = read_run(write_run(tmp_path / "none", gain=0.0))
    assert said(none, "No better than the majority class")[0] == "bad"


def test_a_promise_is_of_the_rows_that_its_recipe_generates(tmp_path: Path) -> None:
    bayes = {"auc": 0.85, "logloss": 0.42, "ne": 0.75, "rows": 14_000}
    for gain, verb, kind in ((0.0, "Misses", "bad"), (1.2, "Keeps", "good")):
        generated = read_run(write_run(tmp_path / f"generated {gain}", gain=gain, bayes=bayes))
        assert said(generated, f"{verb} what quickstart promises")[0] == kind
        own = read_run(write_run(tmp_path / f"own {gain}", gain=gain))
        assert not [text for _, text in charts.sentences(own) if "promises" in text]


@pytest.mark.parametrize(
    ("overrides", "gain", "kind", "words"),
    [
        ([], 1.0, "good", ["Reproduces quickstart", "within ± 0.02"]),
        ([], 0.2, "bad", ["Does not reproduce quickstart"]),
        ([], 2.0, "plain", ["Better than quickstart"]),
        (["published.train_rows=39000000"], 1.0, "plain", ["not held to them", "39,000,000", "10,000"]),
        (["published.tolerance=null"], 1.0, "plain", ["no tolerance is given"]),
    ],
)
def test_against_published_figures(
    overrides: list[str], gain: float, kind: str, words: list[str], tmp_path: Path
) -> None:
    run = read_run(write_run(tmp_path / "run", *PUBLISHED, *overrides, gain=gain))
    assert said(run, *words)[0] == kind
    (published,) = [row for row in charts.comparisons(run) if row[0] == "Published"]
    assert published[1]["auc"] == 0.76
    assert "A table" in published[3]


def test_the_gap_to_the_ground_truth_model_is_on_the_labels_of_the_split(tmp_path: Path) -> None:
    val = {"auc": 0.9, "logloss": 0.4, "ne": 0.7, "rows": 4000, "sampled_auc": 0.8, "sampled_logloss": 0.41}
    bayes = {"auc": 0.85, "logloss": 0.42, "ne": 0.75, "rows": 14_000, "splits": {"val": val}}
    run = read_run(write_run(tmp_path / "run", bayes=bayes))
    auc = run.evaluation.auc or 0
    assert said(run, "ground-truth model")[1].startswith(
        f"Gap to the ground-truth model: AUC {0.8 - auc:.4f} below its 0.8000"
    )
    (row,) = [row for row in charts.comparisons(run) if row[0] == "Ground-truth model"]
    assert row[1]["logloss"] == 0.41
    assert row[1]["ne"] == pytest.approx(0.41 / (charts.baseline(run.evaluation.figure("base_rate"))["logloss"] or 0))
    del bayes["splits"]
    run = read_run(write_run(tmp_path / "older", bayes=bayes))
    assert "below its 0.8500" in said(run, "ground-truth model")[1]


def test_a_killed_run_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    (directory / "summary.json").unlink()
    text = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(text[:5]) + text[5][:20])
    run = read_run(directory)
    assert (run.status, run.steps, run.evaluation) == ("unfinished", 50, EvaluationFigures(auc=None))
    assert said(run, "No summary")[0] == "bad"
    (directory / "metrics.jsonl").write_text("".join(text[:2]) + "nonsense\n" + "".join(text[3:]))
    refused(r"metrics.jsonl: line 3 is not an event", read_run, directory)
