"""Several runs side by side: what is the same, what is significant, what agrees."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from scipy import stats

from app.config.app_config import CONFIG_DIR
from app.config.commands import ReportConfig
from app.metrics.documents import TrainEvent
from app.record.documents import write_scores
from app.report.__main__ import main
from app.report.compare import (
    AucComparison,
    Comparison,
    RunGroup,
    ScoreComparison,
    compare_auc,
    compare_scores,
    compare_speed,
    differences,
    facts,
    group_runs,
    page_name,
    same_rows,
    window_times,
)
from app.report.page import run_page
from app.report.read import RunFiles, read_run
from app.report.statistics import MeanDifference
from app.training.recorder import rows_digest
from common.compose import compose_config
from tests.app.report.runs import write_run
from tests.app.summaries import LEAST_MANIFEST
from tests.data_prep.conftest import prepare
from tests.error_lines import refused
from tests.oracles.statistics import delong_of_two

Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[RunFiles]:
    """Two learning rates, four seeds each; the second is better and 1.5 times faster."""
    return runs_of(tmp_path_factory.mktemp("sweep"), ((0.01, 1.0, 15.0), (0.02, 1.4, 10.0)), seeds=4)


def difference_of(first: RunGroup, second: RunGroup) -> tuple[AucComparison, MeanDifference]:
    """The comparison of two groups' AUCs, and the difference in it."""
    auc = compare_auc(first, second)
    assert auc is not None
    assert auc.difference is not None
    return auc, auc.difference


def aucs_of(entry: RunGroup) -> list[float]:
    return [run.evaluation.auc or 0 for run in entry.runs]


def said_of(*runs: RunFiles) -> list[str]:
    return [text for _, text in Comparison(list(runs)).sentences()]


def runs_of(root: Path, values: Iterable[tuple[float, float, float]], seeds: int) -> list[RunFiles]:
    """Runs of several seeds for each rate, gain, and milliseconds a step."""
    return [
        read_run(write_run(root / f"lr{lr}-{seed}", f"optimizer.lr={lr}", seed=seed, gain=gain, step_ms=step_ms))
        for lr, gain, step_ms in values
        for seed in range(seeds)
    ]


def test_groups_differ_in_more_than_the_seed(sweep: list[RunFiles]) -> None:
    groups = group_runs(sweep)
    assert [(entry.label, len(entry.runs)) for entry in groups] == [("A", 4), ("B", 4)]
    differing, same = differences(sweep)
    assert set(differing) == {"optimizer.lr", "train.seed"}
    assert differing["optimizer.lr"] == ["0.01"] * 4 + ["0.02"] * 4
    assert same["versions.torch"]


def test_another_version_or_commit_is_another_group(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name, manifest={"versions": {"torch": name}})) for name in ("2.12", "2.13")]
    assert len(group_runs(runs)) == 2
    assert differences(runs)[0]["versions.torch"] == ["2.12", "2.13"]


def test_another_quota_is_other_hardware(tmp_path: Path) -> None:
    machines = {"whole": {"cores": 2, "cpu_quota": None}, "half": {"cores": 2, "cpu_quota": 0.5}}
    runs = [read_run(write_run(tmp_path / name, manifest={"hardware": each})) for name, each in machines.items()]
    assert list(differences(runs)[0]) == ["hardware.cpu_quota"]
    assert "2 cores, of which the container may use 0.5" in run_page(runs[1])


def test_speed_and_auc_of_two_groups(sweep: list[RunFiles]) -> None:
    first, second = group_runs(sweep)
    speed = compare_speed(first, second)
    assert speed is not None
    assert speed.over == "4 and 4 runs"
    assert speed.ratio.ratio == pytest.approx(1.5, rel=0.01)
    assert speed.ratio.low is not None
    assert 1.45 < speed.ratio.low < speed.ratio.ratio
    auc, difference = difference_of(first, second)
    aucs = [aucs_of(first), aucs_of(second)]
    assert auc.test == "paired t-test"
    assert difference.p == pytest.approx(stats.ttest_rel(*aucs).pvalue, rel=1e-5)
    assert difference.mean == pytest.approx(np.mean(aucs[1]) - np.mean(aucs[0]))
    statement = " ".join(said_of(*sweep))
    assert "significant (p =" in statement
    assert "not significant" not in statement
    assert "-0." not in statement


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_unfinished_runs_count_in_no_test(sweep: list[RunFiles], tmp_path: Path, status: str) -> None:
    unfinished = read_run(write_run(tmp_path / "cut", "optimizer.lr=0.02", seed=0, gain=0.1, status=status))
    runs = [*sweep[:4], unfinished, *sweep[5:]]
    first, second = group_runs(runs)
    assert unfinished in second.runs
    auc, difference = difference_of(first, second)
    assert auc.seeds == (3, 3)
    assert difference.p == pytest.approx(stats.ttest_rel(aucs_of(first)[1:], aucs_of(group_runs(sweep)[1])[1:]).pvalue)
    assert any(
        f"cut is {status}: its figures are not final, and no test counts them" in said for said in said_of(*runs)
    )


def test_other_seeds_are_not_paired(sweep: list[RunFiles]) -> None:
    first, second = group_runs([*sweep[:2], *sweep[6:]])
    auc, difference = difference_of(first, second)
    assert auc.test == "Welch's test"
    expected = stats.ttest_ind(aucs_of(first), aucs_of(second), equal_var=False)
    assert difference.p == pytest.approx(expected.pvalue, rel=1e-5)


@pytest.mark.parametrize("labels", [None, "other"])
def test_other_validation_rows_are_not_comparable(labels: str | None, sweep: list[RunFiles], tmp_path: Path) -> None:
    other = read_run(write_run(tmp_path / "o", "optimizer.lr=0.02", digest="e" * 64, labels_digest=labels, gain=0.2))
    comparison = Comparison([sweep[0], other])
    ((kind, sentence),) = [entry for entry in comparison.sentences() if "AUC" in entry[1]]
    assert (kind, "not comparable" in sentence) == ("bad", True)
    assert "different data (digests dddddddddddd and eeeeeeeeeeee), 4,000 rows of val of data/x" in sentence


def test_the_same_rows_in_another_encoding_are_comparable(sweep: list[RunFiles], tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / digest, f"data.encoding={digest}", digest=digest, labels_digest="l"))
        for digest in ("hash", "torchrec")
    ]
    difference_of(*group_runs(runs))


@pytest.mark.medium
def test_rows_are_told_apart_by_more_than_their_labels(tmp_path: Path) -> None:
    """Files with the same labels in the same order, other weights, other rows of a file that is sorted by label."""

    def digest(name: str, rows: Sequence[str], schema: str, *keys: str) -> str:
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        root.mkdir()
        (root / name).write_text("\n".join(["y,user,weight", *rows, ""]), encoding="utf-8")
        (root / "s.yaml").write_text(schema, encoding="utf-8")
        files = [f"data.raw={root}/{name}", f"data.schema={root}/s.yaml", f"data.path={root}/data"]
        return rows_digest(prepare(*files, *keys), "test")

    rows = [f"{int(i >= 200)},u{i % 40},{1 + i % 3}" for i in range(400)]
    others = [row.replace("u1", "v1") for row in rows]
    schema, stratified = "label: y\nsparse: [user]\n", ["data.split.method=stratified"]
    own = digest("rows.csv", rows, schema, *stratified)
    assert digest("rows.csv", rows, schema, *stratified, "data.frequency_threshold=9") == own
    different = {
        digest("rows.csv", others, schema, *stratified),
        digest("rows.csv", rows, f"{schema}weight: weight\n", *stratified),
        digest("rows.csv", rows, schema, *stratified, "data.split.seed=1"),
    }
    assert len(different - {own}) == 3


def test_drawn_negatives_are_rows_of_train(tmp_path: Path) -> None:
    keys = ("data.negatives.user=user", "data.negatives.item=item")
    first, second = (
        read_run(write_run(tmp_path / str(count), f"data.negatives.per_positive={count}", *keys)) for count in (1, 4)
    )
    assert same_rows(first, second)
    for run in (first, second):
        assert run.summary is not None
        run.summary.eval.split = "train"
    assert not same_rows(first, second)


def test_one_sign_for_minus(sweep: list[RunFiles]) -> None:
    worse_first = [*sweep[4:], *sweep[:4]]
    (sentence,) = [text for text in said_of(*worse_first) if text.startswith("AUC")]
    assert sentence.count("−0.") == 3
    assert "-0." not in sentence


def test_one_seed_each_gets_an_interval_within_runs_and_no_test(sweep: list[RunFiles]) -> None:
    sentences = said_of(sweep[0], sweep[4])
    assert "stretches within one run each" in sentences[0]
    assert "95% interval" in sentences[0]
    assert "a test over seeds takes two of either" in sentences[1]


def test_a_run_repeated_at_one_seed_is_no_second_seed(tmp_path: Path, sweep: list[RunFiles]) -> None:
    repeat = read_run(write_run(tmp_path / "again", "optimizer.lr=0.01", seed=0))
    first, second = group_runs([sweep[0], repeat, sweep[4], sweep[5]])
    auc, difference = difference_of(first, second)
    assert auc.seeds == (1, 2)
    assert difference.p is None


def set_events(run: RunFiles, events: list[TrainEvent]) -> RunFiles:
    """The run with other events of training."""
    return dataclasses.replace(run, events=[*events, *run.evaluations])


def test_a_window_that_a_resumption_began_in_is_of_its_warm_up(tmp_path: Path) -> None:
    """Its first steps are the launch's first: ten times as slow, and left out as those of other launches are."""
    earlier = {**LEAST_MANIFEST, "from_step": 0}
    parts = {"from_step": 0, "earlier": []}, {"from_step": 55, "earlier": [earlier]}
    whole, resumed = (
        read_run(write_run(tmp_path / str(number), "train.warmup_steps_excluded=10", manifest=part))
        for number, part in enumerate(parts)
    )
    train = resumed.windows
    rates = {event.step: event.samples_per_second or 0 for event in train}
    rates[60] /= 10
    slow = [structs.replace(event, samples_per_second=rates[event.step]) for event in train]
    seconds, _ = window_times(set_events(resumed, slow))
    ends = [step for step in rates if not (step <= 10 or 55 < step < 75)]
    assert len(seconds) == len(ends)
    assert seconds.max() < 2 * seconds.min()
    speed = compare_speed(*(RunGroup(name, [run]) for name, run in (("A", whole), ("B", set_events(resumed, slow)))))
    assert speed is not None
    assert speed.ratio.low is not None
    assert speed.ratio.high is not None
    assert 0.95 < speed.ratio.low < speed.ratio.high < 1.05


def test_a_window_with_an_epochs_last_batch_has_its_own_samples(tmp_path: Path) -> None:
    """Batches of 1,000 rows with a partial last one, as train.drop_last=false leaves it."""
    run = read_run(write_run(tmp_path / "a", "train.warmup_steps_excluded=0"))
    train = [structs.replace(event, samples=(event.samples or 0) - 1000 * (event.step >= 50)) for event in run.windows]
    seconds, samples = window_times(set_events(run, train))
    whole = 10 * run.global_batch_size
    assert samples.tolist() == [whole - 1000 * (event.step == 50) for event in train]
    np.testing.assert_allclose(seconds, samples / [event.samples_per_second for event in train])


def test_runs_that_were_built_without_data_are_shown(tmp_path: Path) -> None:
    for name in ("a", "b"):
        directory = write_run(tmp_path / name)
        manifest = json.loads((directory / "manifest.json").read_bytes())
        manifest["dataset"] = {"path": None, "digest": None, "published_tables": "mlperf_v2"}
        (directory / "manifest.json").write_text(json.dumps(manifest))
        (directory / "metrics.jsonl").unlink()
        assert "built from the table sizes of mlperf_v2, without data" in run_page(read_run(directory))
    runs = [read_run(tmp_path / name) for name in ("a", "b")]
    assert facts(runs[0])["dataset digest"] == "mlperf_v2"
    Comparison(runs).page(tmp_path)


def test_the_page_highlights_what_differs(sweep: list[RunFiles], tmp_path: Path) -> None:
    page = Comparison(sweep).page(tmp_path)
    differing = page.split('<div class="differing">')[1].split("</table>")[0]
    assert "optimizer.lr" in differing
    assert "model.embedding_dim" not in differing
    assert "model.embedding_dim" in page


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("[]", "give at least one run"),
        ("[a,a]", "names a run twice"),
        ("[nothing]", "run=nothing: not a run's directory"),
    ],
)
def test_the_command_refuses_what_it_cannot_show(
    runs: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(message, main, compose_config(ReportConfig, CONFIG_DIR, [f"runs={runs}"], name="report"))


def keep(run: RunFiles, logits: Values, labels: Values, step: int = 100, dataset: str = "d" * 64) -> None:
    write_scores(run.directory, "test", step, dataset, logits, labels)


def scored(tmp_path: Path, **of_second: Any) -> tuple[RunFiles, RunFiles, Values, list[Values]]:
    """Two runs of one seed, labels, and scores of both that depend on each other; the second's are better."""
    rng = np.random.default_rng(0)
    labels = (rng.random(800) < 0.3).astype(np.float32)
    common = rng.normal(size=800) + labels
    logits = [(common + 0.3 * rng.normal(size=800) + gain * labels).astype(np.float32) for gain in (0.0, 0.3)]
    runs = [
        read_run(write_run(tmp_path / name, f"optimizer.lr={rate}", **values))
        for name, rate, values in (("a", 0.01, {}), ("b", 0.02, of_second))
    ]
    return runs[0], runs[1], labels, logits


def scores_of(*runs: RunFiles) -> ScoreComparison:
    comparison = compare_scores(*group_runs(list(runs)))
    assert comparison is not None
    return comparison


def test_two_models_are_compared_row_by_row(tmp_path: Path) -> None:
    first, second, labels, logits = scored(tmp_path)
    for run, scores in zip((first, second), logits, strict=True):
        keep(run, scores, labels)
    comparison = scores_of(first, second)
    assert comparison.difference is not None
    mean, error = delong_of_two(labels == 1, *logits)
    assert (comparison.split, comparison.rows, comparison.reason) == ("test", 800, "")
    assert comparison.difference.mean == pytest.approx(mean)
    assert comparison.difference.p == pytest.approx(2 * stats.norm.sf(abs(mean / error)))
    statement = " ".join(said_of(first, second))
    assert "Row by row: b against a on the same 800 rows of test: +0.0" in statement
    assert "DeLong's paired test" in statement


@pytest.mark.parametrize("better", [0, 1])
def test_the_pair_that_kept_scores_is_tested_and_named(tmp_path: Path, better: int) -> None:
    """Of seeds that both have, the first with scores on either side."""
    first, second, labels, logits = scored(tmp_path, seed=1)
    other_runs = [
        read_run(write_run(tmp_path / f"{first.name}{seed}", "optimizer.lr=0.01", seed=seed)) for seed in (1, 2)
    ]
    for run, scores in zip((other_runs[0], second), logits if better else reversed(logits), strict=True):
        keep(run, scores, labels)
    comparison = scores_of(first, *other_runs, second)
    assert (comparison.first.name, comparison.second.name) == ("a1", "b")
    (row_by_row,) = [text for text in said_of(first, *other_runs, second) if text.startswith("Row by row")]
    assert f"b against a1 on the same 800 rows of test: {'+' if better else '−'}0.0" in row_by_row


def test_a_seed_without_scores_gives_way_to_one_that_has_them(tmp_path: Path) -> None:
    first, second, labels, logits = scored(tmp_path)
    later = [
        read_run(write_run(tmp_path / f"{run.name}5", f"optimizer.lr={rate}", seed=5))
        for run, rate in ((first, 0.01), (second, 0.02))
    ]
    for run, scores in zip(later, logits, strict=True):
        keep(run, scores, labels)
    comparison = scores_of(first, second, *later)
    assert (comparison.first.name, comparison.second.name, comparison.reason) == ("a5", "b5", "")


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ("other labels", "the labels are not the same"),
        ("another dataset", "(digests dddddddddddd and eeeeeeeeeeee)"),
        ("another step", "the scores of b are of step 50, and step 100 is served"),
        ("none", "b has no scores of test"),
        ("fewer rows", "the labels are not the same (800 and 700 rows"),
    ],
)
def test_scores_of_other_rows_are_not_compared(tmp_path: Path, planted: str, words: str) -> None:
    digest = "e" * 64 if planted == "another dataset" else "d" * 64
    first, second, labels, logits = scored(tmp_path, digest=digest)
    keep(first, logits[0], labels)
    rows = 700 if planted == "fewer rows" else 800
    of_second = labels[::-1] if planted == "other labels" else labels
    if planted != "none":
        keep(second, logits[1][:rows], of_second[:rows], 50 if planted == "another step" else 100, digest)
    for run in (first, second):
        run.manifest.dataset.rows = {"test": 800}
    assert scores_of(first, second).difference is None
    (row_by_row,) = [text for text in said_of(first, second) if text.startswith("Row by row")]
    assert words in row_by_row
    remedies = [
        f"python -m app.evaluate run={run.directory} split=test keep_scores=800"
        for run in ([second] if planted in ("another step", "none") else [first, second])
    ]
    remedy = f"; keep the scores by {' and '.join(remedies)}"
    assert row_by_row.endswith("eeeeeeeeeeee)." if planted == "another dataset" else f"{remedy}.")


def test_runs_without_scores_say_nothing_of_rows(sweep: list[RunFiles]) -> None:
    assert compare_scores(*group_runs(sweep)) is None
    assert not [text for text in said_of(*sweep) if text.startswith("Row by row")]


def test_damaged_scores_are_one_line(tmp_path: Path) -> None:
    first, second, labels, logits = scored(tmp_path)
    keep(first, logits[0], labels)
    keep(second, logits[1], labels)
    (first.directory / "scores/test.logits.npy").write_bytes(b"")
    refused(r"test\.logits\.npy: damaged", Comparison, [first, second])


def test_keeping_scores_is_no_other_configuration(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / f"{rows}", f"eval.keep_scores={rows}", seed=rows)) for rows in (0, 1)]
    assert len(group_runs(runs)) == 1


@pytest.mark.medium
def test_speed_is_in_words_where_the_aucs_are_equal(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / f"{ms}", step_ms=ms)) for ms in (10.0, 20.0)]
    rates = sorted(run.throughput.samples_per_second or 0 for run in runs)
    (one_configuration,) = said_of(*runs)
    assert (
        f"global samples/s from {rates[0]:,.0f} to {rates[1]:,.0f} ({rates[1] / rates[0]:.2f} ×)" in one_configuration
    )
    other = read_run(write_run(tmp_path / "other", "optimizer.lr=0.02", step_ms=20.0))
    (speed,) = [text for text in said_of(runs[0], other) if text.startswith("Speed")]
    assert f"with {other.throughput.samples_per_second:,.0f} and {rates[1]:,.0f} global samples/s" in speed


def test_machine_and_speed_have_a_row_each(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / name, f"runtime.precision={name}", step_ms=ms))
        for name, ms in (("fp32", 10.0), ("bf16", 20.0))
    ]
    table = {row[0]: row[1:] for row in Comparison(runs).machines().rows}
    assert table["Precision"] == ["fp32", "bf16"]
    assert table["Global batch"] == ["512", "512"]
    for key, figure in (("Step, p50", "step_ms_p50"), ("Step, p95", "step_ms_p95")):
        assert table[key] == [f"{getattr(run.throughput, figure):.2f} ms" for run in runs]
    assert table["Mean step, backward"] == ["5.00 ms", "10.00 ms"]
    assert "Device" in table
    assert "Mean step, exchange" not in table  # of one process each


def test_one_outlier_flattens_no_chart_of_a_comparison(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name)) for name in ("a", "b")]
    runs[1].windows[0].logloss = 970.0
    (chart,) = [chart for chart in Comparison(runs).charts() if chart.key == "logloss"]
    assert chart.limits is not None
    assert chart.limits[1] < 1
    assert "the largest 970 at step 10 (b)" in chart.note


def test_each_comparison_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        write_run(tmp_path / "runs" / name)
    for runs in ("[runs/a,runs/b]", "[runs/a,runs/c]"):
        main(compose_config(ReportConfig, CONFIG_DIR, [f"runs={runs}"], name="report"))
    main(compose_config(ReportConfig, CONFIG_DIR, ["runs=[runs/b,runs/c]", "out=given.html"], name="report"))
    assert {path.name for path in (tmp_path / "runs").glob("*.html")} == {"compare-a-b.html", "compare-a-c.html"}
    assert (tmp_path / "given.html").exists()
    many = [Path(f"runs/a_long_name_{number}") for number in range(40)]
    elsewhere = [Path("x/seed_0"), Path("y/seed_0")], [Path("x/seed_0"), Path("z/seed_0")]
    names = [page_name(directories) for directories in (many, many[:39], *elsewhere)]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= 90
