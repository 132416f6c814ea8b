"""Several runs side by side: what is the same, what is significant, what agrees; the statistics, against SciPy."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray
from scipy import stats

from app.metrics.documents import TrainEvent
from app.record.documents import write_scores
from app.report import compare
from app.report.read import RunFiles, read_run
from app.report.statistics import MeanDifference, delong, paired, speed_ratio, spread, welch
from app.training.recorder import rows_digest
from tests.app.report.runs import write_run
from tests.app.run_files import LEAST_MANIFEST
from tests.data_prep.conftest import prepare
from tests.oracles.statistics import delong_of_two, t_test

Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[RunFiles]:
    """Two learning rates, four seeds each; the second is better and 1.5 times faster."""
    root = tmp_path_factory.mktemp("sweep")
    return [
        read_run(write_run(root / f"lr{lr}-{seed}", f"optimizer.lr={lr}", seed=seed, gain=gain, step_ms=step_ms))
        for lr, gain, step_ms in ((0.01, 1.0, 15.0), (0.02, 1.4, 10.0))
        for seed in range(4)
    ]


def difference_of(first: compare.RunGroup, second: compare.RunGroup) -> tuple[str, MeanDifference]:
    """The sentence about two groups' AUCs, and the difference in it."""
    auc = compare.compare_auc(first, second)
    assert auc is not None
    return auc.text, auc.figures


def aucs_of(entry: compare.RunGroup) -> list[float]:
    return [run.evaluation.auc or 0 for run in entry.runs]


def said_of(*runs: RunFiles) -> list[str]:
    return [text for _, text in compare.Comparison(list(runs)).sentences()]


def test_groups_differ_in_more_than_the_seed(sweep: list[RunFiles]) -> None:
    groups = compare.group_runs(sweep)
    assert [(entry.label, len(entry.runs)) for entry in groups] == [("A", 4), ("B", 4)]
    differing, same = compare.differences(sweep)
    assert set(differing) == {"optimizer.lr", "train.seed"}
    assert differing["optimizer.lr"] == ["0.01"] * 4 + ["0.02"] * 4
    assert same["versions.torch"]


def test_speed_and_auc_of_two_groups(sweep: list[RunFiles]) -> None:
    first, second = compare.group_runs(sweep)
    speed = compare.compare_speed(first, second)
    assert speed is not None
    assert "over 4 and 4 runs" in speed.text
    assert speed.figures[0] == pytest.approx(1.5, rel=0.01)
    assert 1.45 < speed.figures[1] < speed.figures[0]
    auc, difference = difference_of(first, second)
    aucs = [aucs_of(first), aucs_of(second)]
    assert "paired t-test over the 4 seeds of both" in auc
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
    first, second = compare.group_runs(runs)
    assert unfinished in second.runs
    auc, difference = difference_of(first, second)
    assert "over the 3 seeds of both" in auc
    assert difference.p == pytest.approx(
        stats.ttest_rel(aucs_of(first)[1:], aucs_of(compare.group_runs(sweep)[1])[1:]).pvalue
    )
    assert any(
        f"cut is {status}: its figures are not final, and no test counts them" in said for said in said_of(*runs)
    )


def test_other_seeds_are_not_paired(sweep: list[RunFiles]) -> None:
    first, second = compare.group_runs([*sweep[:2], *sweep[6:]])
    auc, difference = difference_of(first, second)
    assert "Welch's test over 2 and 2 seeds" in auc
    expected = stats.ttest_ind(aucs_of(first), aucs_of(second), equal_var=False)
    assert difference.p == pytest.approx(expected.pvalue, rel=1e-5)


@pytest.mark.parametrize("labels", [None, "other"])
def test_other_validation_rows_are_not_comparable(labels: str | None, sweep: list[RunFiles], tmp_path: Path) -> None:
    other = read_run(write_run(tmp_path / "o", "optimizer.lr=0.02", digest="e" * 64, labels_digest=labels, gain=0.2))
    comparison = compare.Comparison([sweep[0], other])
    ((kind, sentence),) = [entry for entry in comparison.sentences() if "AUC" in entry[1]]
    assert (kind, "not comparable" in sentence) == ("bad", True)
    assert "different data (digests dddddddddddd and eeeeeeeeeeee), 4,000 rows of val of data/x" in sentence


@pytest.mark.medium
def test_rows_are_told_apart_by_more_than_their_labels(tmp_path: Path) -> None:

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
    seconds, _ = compare.window_times(set_events(resumed, slow))
    ends = [step for step in rates if not (step <= 10 or 55 < step < 75)]
    assert len(seconds) == len(ends)
    assert seconds.max() < 2 * seconds.min()
    speed = compare.compare_speed(
        *(compare.RunGroup(name, [run]) for name, run in (("A", whole), ("B", set_events(resumed, slow))))
    )
    assert speed is not None
    assert 0.95 < speed.figures[1] < speed.figures[2] < 1.05


def test_a_window_with_an_epochs_last_batch_has_its_own_samples(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "train.warmup_steps_excluded=0"))
    train = [structs.replace(event, samples=(event.samples or 0) - 1000 * (event.step >= 50)) for event in run.windows]
    seconds, samples = compare.window_times(set_events(run, train))
    whole = 10 * run.global_batch_size
    assert samples.tolist() == [whole - 1000 * (event.step == 50) for event in train]
    np.testing.assert_allclose(seconds, samples / [event.samples_per_second for event in train])


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


def scores_of(*runs: RunFiles) -> compare.Compared:
    comparison = compare.compare_scores(*compare.group_runs(list(runs)))
    assert comparison is not None
    return comparison


def test_two_models_are_compared_row_by_row(tmp_path: Path) -> None:
    first, second, labels, logits = scored(tmp_path)
    for run, scores in zip((first, second), logits, strict=True):
        keep(run, scores, labels)
    comparison = scores_of(first, second)
    mean, error = delong_of_two(labels == 1, *logits)
    assert comparison.figures.mean == pytest.approx(mean)
    assert comparison.figures.p == pytest.approx(2 * stats.norm.sf(abs(mean / error)))
    statement = " ".join(said_of(first, second))
    assert "Row by row: b against a on the same 800 rows of test: +0.0" in statement
    assert "DeLong's paired test" in statement


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
    assert scores_of(first, second).figures is None
    (row_by_row,) = [text for text in said_of(first, second) if text.startswith("Row by row")]
    assert words in row_by_row
    remedies = [
        f"python -m app.evaluate run={run.directory} split=test keep_scores=800"
        for run in ([second] if planted in ("another step", "none") else [first, second])
    ]
    remedy = f"; keep the scores by {' and '.join(remedies)}"
    assert row_by_row.endswith("eeeeeeeeeeee)." if planted == "another dataset" else f"{remedy}.")


values = st.lists(st.floats(0.6, 0.9).map(lambda x: round(x, 6)), min_size=2, max_size=8)


@pytest.mark.parametrize("size", [2, 3, 10, 1_000, 100_000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_drawn_samples_are_tested_as_defined(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    first, second = scale * rng.normal(0, 1, size), scale * rng.normal(0.1, 2, size)
    assert tuple(paired(first, second)) == pytest.approx(t_test(first, second, is_paired=True), rel=1e-9)
    more = np.append(second, scale)
    assert tuple(welch(first, more)) == pytest.approx(t_test(first, more, is_paired=False), rel=1e-9)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 9), (1_000, 50_000)])
@pytest.mark.parametrize("scale", [1e-9, 1.0])
def test_the_interval_of_drawn_speeds_is_welchs_of_their_logarithm(sizes: tuple[int, int], scale: float) -> None:
    rng = np.random.default_rng(sizes[1])
    first, second = scale * rng.uniform(1, 1.3, sizes[0]), scale * rng.uniform(0.4, 0.7, sizes[1])
    interval = stats.ttest_ind(first / first.mean(), second / second.mean(), equal_var=False).confidence_interval(0.95)
    ratio = first.mean() / second.mean()
    expected = (ratio, ratio * np.exp(interval.low), ratio * np.exp(interval.high))
    assert tuple(speed_ratio(first, second)) == pytest.approx(expected, rel=1e-9)


@given(values)
def test_the_spread_of_values_is_scipys(sample: list[float]) -> None:
    mean, std, low, high = spread(sample)
    assert mean == pytest.approx(np.mean(sample))
    assert std == pytest.approx(np.std(sample, ddof=1), abs=1e-12)
    if np.ptp(sample) > 1e-9:
        assert (low, high) == pytest.approx(
            stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=stats.sem(sample)), rel=1e-9
        )
    assert spread(sample[:1]) == (sample[0], None, None, None)


@pytest.mark.parametrize(("size", "rate", "digits"), [(12, 0.5, 0), (60, 0.3, 1), (400, 0.1, 1), (700, 0.25, 9)])
@pytest.mark.parametrize("gain", [0.0, 0.4])
def test_delongs_test_is_that_of_all_pairs(size: int, rate: float, digits: int, gain: float) -> None:
    rng = np.random.default_rng(size)
    labels = rng.random(size) < rate
    labels[:4] = [True, True, False, False]
    common = rng.normal(size=size) + labels
    first, second = (np.round(common + rng.normal(size=size) + g * labels, digits) for g in (0.0, gain))
    difference = delong(labels, first, second)
    mean, error = delong_of_two(labels, first, second)
    expected = stats.norm.interval(0.95, mean, error)
    assert tuple(difference) == pytest.approx(
        (mean, *expected, 2 * stats.norm.sf(abs(mean / error))), rel=1e-9, abs=1e-12
    )


def test_delongs_test_of_equal_and_of_too_few_rows() -> None:
    labels, scores = np.array([True, False, True, False]), np.array([0.1, 0.4, 0.3, 0.2])
    assert delong(labels, scores, 2 * scores) == (0.0, 0.0, 0.0, 1.0)
    difference = delong(labels[:3], scores[:3], np.array([0.5, 0.4, 0.3]))
    assert tuple(difference) == (0.5, None, None, None)
    with pytest.raises(ValueError, match="one label"):
        delong(np.ones(4, bool), scores, scores)
