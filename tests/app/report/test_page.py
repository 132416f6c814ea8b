"""The report as a file: of a real run, whole, alone, small."""

import html.parser
import json
import re
import time
from pathlib import Path

import pytest

from app.report.charts import MAX_POINTS
from app.report.page import write_report
from tests.app.conftest import SMALL, Command
from tests.app.report.conftest import LongReport
from tests.app.report.runs import write_run
from tests.browser import DRAWN_BY, PICTURES, drawing_digest

CHARTS = ["logloss", "accuracy", "auc", "ne", "gradient_norm", "calibration", "scores", "roc", "pr", "lr", "throughput"]
CHARTS += ["step_times", "phases", "input_wait", "memory", "power"]
MOST_BYTES = 2_000_000


class Page(html.parser.HTMLParser):
    """What a page refers to, its text and its charts' numbers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.text = ""
        self.ids: list[str] = []
        self._inside = ""
        self.feed(text)
        match = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
        assert match
        self.charts = json.loads(match[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        values = dict(attrs)
        self.references += [str(values[key]) for key in ("src", "href", "action", "data", "srcset") if key in values]
        self.ids += [str(values["id"])] if "id" in values else []

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


@pytest.mark.slow("processes")
def test_an_interrupted_and_a_failed_run_have_their_reports(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    run_app("train", *SMALL, f"data.path={dataset}", "run.name=cut", "train.max_minutes=0.00001", status=75)
    assert "Interrupted after" in (tmp_path / "runs/cut/report.html").read_text()
    run_app("train", *SMALL, f"data.path={dataset}", "run.name=burst", "optimizer=sgd", "optimizer.lr=1e30", status=2)
    page = (tmp_path / "runs/burst/report.html").read_text()
    assert "Failed after" in page
    assert "first non-finite value" in page


@pytest.mark.slow("examples")
def test_200_000_steps_stay_small_and_keep_their_peak(long_report: LongReport) -> None:
    assert long_report.page.stat().st_size < MOST_BYTES
    page = Page(long_report.page.read_text())
    (train,) = [series for series in page.charts["logloss"]["series"] if series["name"] == "train"]
    assert len(train["x"]) <= MAX_POINTS
    assert train["y"][train["x"].index(long_report.step)] == long_report.peak
    assert "drawn as the minimum and maximum" in page.text


def test_whatever_a_run_is_called_stays_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    run = write_run(tmp_path / "run", manifest={"image": evil, "argv": ["train.py", f"run.name={evil}"]})
    text = write_report(run).read_text()
    assert evil not in text
    assert evil in Page(text).text


def test_the_served_and_the_last_evaluation_have_their_tiles(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", best={"step": 60, "auc": 0.8125})
    summary = json.loads((directory / "summary.json").read_bytes())
    last = summary["eval"]
    served = {**last, "step": 60, "auc": 0.8125, "ne": 0.8765, "auc_standard_error": 0.0123}
    (directory / "summary.json").write_text(json.dumps({**summary, "eval": served, "last": last}))
    text = re.sub(r"\s+", " ", Page(write_report(directory).read_text()).text)
    for tile in (
        "AUC 0.8125 val, step 60, ± 0.0123",
        "Normalised entropy 0.8765",
        f"Last AUC {last['auc']:.4f} at step {last['step']}",
    ):
        assert tile.replace(" ", "") in text.replace(" ", ""), tile


def test_the_best_auc_has_its_tile(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", best={"step": 60, "auc": 0.91234})).read_text()
    assert '<p class="what">Best AUC</p><p class="value">0.9123</p><p class="note">at step 60</p>' in page


def test_one_evaluation_has_one_tile(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    summary = json.loads((directory / "summary.json").read_bytes())
    best = {"step": summary["eval"]["step"], "auc": summary["eval"]["auc"], "monitor": None, "value": None}
    (directory / "summary.json").write_text(json.dumps({**summary, "best": best}))
    page = write_report(directory).read_text()
    assert re.findall('<p class="what">([^<]*AUC)</p>', page) == ["AUC"]


@pytest.mark.parametrize("first", [300.0, 0.9])
def test_a_first_loss_does_not_flatten_the_chart(first: float, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), "loss": first, "logloss": first}) + "\n"
    (run / "metrics.jsonl").write_text("".join(lines))
    chart = Page(write_report(run).read_text()).charts["logloss"]
    assert chart["series"][0]["y"][0] == first
    if first == 0.9:
        assert chart["limits"] is None
    else:
        ordinates = [y for series in chart["series"] for y in series["y"] if y != first]
        assert chart["limits"] == pytest.approx([min(ordinates), max(ordinates)], rel=1e-4)
        assert "One value is beyond the axis, the largest 300 at step 10 (train)." in chart["note"]


def test_ids_are_unique_and_every_chart_is_told_in_words(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path / "run")).read_text()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    result = re.findall(r'role="group" aria-roledescription="chart" aria-label="([^"]+)"', text)
    assert len(result) == len(CHARTS) - 1  # power was not measured
    assert all("minimum" in words for words in result)


def test_the_pictures_in_the_docs_are_of_todays_report() -> None:
    """Else: make train, then .venv/bin/python -m tests.browser runs/quickstart/report.html docs/images."""
    images = Path(__file__).parents[3] / "docs/images"
    assert (images / DRAWN_BY).read_text().strip() == drawing_digest(), (
        "the report's pictures have aged; take them again"
    )
    assert all((images / f"report-{name}.png").exists() for name in PICTURES)
