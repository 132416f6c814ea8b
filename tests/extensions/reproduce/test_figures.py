"""Means, intervals and verdicts of a reproduction, against NumPy and SciPy; and when there is no verdict."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from app.report.read import read_run
from extensions.reproduce.command import (
    Reproduction,
    Seed,
    finished_runs,
    reproduction_page,
    summarise,
    training_arguments,
)
from tests.extensions.reproduce.runs import composed, edit, write_seeds

PUBLISHED = ["published.source=A", "published.data=B", "published.tolerance=0.001"]


def document(seeds: list[Seed], *overrides: str, failed: dict[int, int] | None = None) -> Reproduction:
    arguments = [override for override in overrides if not override.startswith(("seeds=", "published."))]
    config = composed("run.name=x", *overrides)
    return summarise(config, arguments, seeds, finished_runs(seeds), failed or {})


def said(reproduction: Reproduction) -> str:
    return "\n".join(sentence for _, sentence in reproduction.verdict)


@pytest.mark.medium
def test_figures_are_those_of_numpy_and_scipy(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 5)
    reproduction = document(seeds, "published.test_auc=0.7031", *PUBLISHED)
    by_name = {(figure.split, figure.metric): figure for figure in reproduction.figures}
    assert set(by_name) == {(split, metric) for split in ("val", "test") for metric in ("auc", "logloss", "ne")}
    tested = np.array([0.701, 0.702, 0.703, 0.704, 0.705])
    evaluated = np.array([read_run(seed.directory).evaluation.auc for seed in seeds])
    for split, values in (("test", tested), ("val", evaluated)):
        figure = by_name[split, "auc"]
        reach = stats.t.ppf(0.975, 4) * values.std(ddof=1) / np.sqrt(5)
        expected = values.mean(), values.std(ddof=1), values.mean() - reach, values.mean() + reach
        assert (figure.mean, figure.std, figure.low, figure.high) == pytest.approx(expected, rel=1e-9)
        assert list(figure.values.values()) == values.tolist()
    assert (by_name["test", "auc"].published, by_name["test", "auc"].inside) == (0.7031, True)
    assert by_name["val", "auc"].published is None
    assert reproduction.seconds == 60.0
    assert reproduction.joules is None
    assert "Reproduced: AUC of test: published 0.70310 lies inside, mean 0.70300" in said(reproduction)
    assert "energy: not measured" in said(reproduction)


@pytest.mark.parametrize(
    ("published", "kind", "words"),
    [
        (0.70596 + 1e-3 + 1e-6, "bad", "the mean is worse by 0.00396"),
        pytest.param(0.70096 - 1e-3 - 1e-5, "plain", "the mean is better by", marks=pytest.mark.slow),
        pytest.param(0.7049 + 1e-3, "good", "Reproduced", marks=pytest.mark.slow),
    ],
)
def test_a_published_figure_is_inside_with_the_tolerance_or_not(
    tmp_path: Path, published: float, kind: str, words: str
) -> None:
    """The interval is 0.703 ± 0.00196; the tolerance widens it by 0.001."""
    reproduction = document(write_seeds(tmp_path, 5), f"published.test_auc={published}", *PUBLISHED)
    ((verdict_kind, sentence),) = [entry for entry in reproduction.verdict if "published" in entry[1]]
    assert (verdict_kind, words in sentence) == (kind, True), sentence


def test_one_seed_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    reproduction = document(write_seeds(tmp_path, 1), "published.test_auc=0.7", *PUBLISHED)
    assert "an interval takes two finished seeds at least, so there is no verdict" in said(reproduction)
    figure = next(each for each in reproduction.figures if (each.split, each.metric) == ("test", "auc"))
    assert (figure.mean, figure.std, figure.low, figure.inside) == (0.701, None, None, None)


@pytest.mark.medium
def test_a_failed_seed_is_named_and_the_rest_stands(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 5)
    edit(seeds[2].directory / "summary.json", status="failed", error="UserError: loss is nan")
    reproduction = document(seeds, "published.test_auc=0.703", *PUBLISHED, failed={3: 2})
    assert [run.status for run in reproduction.runs] == ["completed", "completed", "failed", "completed", "completed"]
    figure = next(each for each in reproduction.figures if (each.split, each.metric) == ("test", "auc"))
    assert figure.mean == pytest.approx(np.mean([0.701, 0.702, 0.704, 0.705]))
    assert set(figure.values) == {"1", "2", "4", "5"}
    assert "4 of 5 seeds done" in said(reproduction)
    assert "Seed 3: failed, UserError: loss is nan; the figures are of the other seeds." in said(reproduction)
    assert "Reproduced" in said(reproduction)
    assert reproduction.seconds == 60.0
    page = reproduction_page(composed("run.name=x"), reproduction, finished_runs(seeds), tmp_path)
    assert "4 of 5 seeds done" in page


def test_another_dataset_than_the_recipes_is_named_and_gets_no_verdict(tmp_path: Path) -> None:
    keys = ["published.auc=0.7", "published.train_rows=33003326", *PUBLISHED]
    reproduction = document(write_seeds(tmp_path, 2), *keys)
    text = said(reproduction)
    assert "(B, 33,003,326 training rows; here 10,000), so this run is not held to them; the dataset is data/x" in text
    assert all(figure.inside is None for figure in reproduction.figures)
    assert "eproduced:" not in text


def test_seeds_on_two_datasets_get_no_verdict(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 2)
    other = write_seeds(tmp_path / "other", 3, digest="e" * 64)[2]
    text = said(document([*seeds, other], "published.auc=0.7", *PUBLISHED))
    assert "trained on different datasets (digests dddddddddddd, eeeeeeeeeeee), so there is no verdict" in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.max_steps=7", "The recipe was changed (train.max_steps=7)"),
        ("optimizer.lr=0.5", "The recipe was changed (optimizer.lr=0.5)"),
        ("data.scale=tiny", "tiny form on generated rows"),
        ("train.log_every_steps=7", ""),
        ("runtime.num_threads=1", ""),
    ],
)
def test_a_changed_recipe_gets_no_verdict(tmp_path: Path, override: str, words: str) -> None:
    reproduction = document(write_seeds(tmp_path, 2), "published.test_auc=0.7", *PUBLISHED, override)
    assert (words in said(reproduction), "eproduced:" in said(reproduction)) == (True, not words)


@pytest.mark.medium
def test_keys_of_a_file_change_the_recipe_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"train": {"epochs": 3}}))
    keys = ["published.test_auc=0.7", *PUBLISHED, *training_arguments(["config=mine.yaml"])]
    reproduction = document(write_seeds(tmp_path / "x", 2), *keys)
    assert "The recipe was changed (train.epochs=3)" in said(reproduction)


def test_samples_to_the_target(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 3, "train.target_auc=0.7")
    for seed, samples in zip(seeds[:2], (1000, 1400), strict=True):
        edit(seed.directory / "summary.json", status="target_reached", samples=samples)
    reproduction = document(seeds, "train.target_auc=0.7")
    low, high = stats.t.interval(0.95, 1, 1200, stats.sem([1000, 1400]))
    interval = f"{low:,.0f} to {high:,.0f}"
    assert f"Samples to AUC 0.7: mean 1,200, 95% interval {interval}, of 2 seeds." in said(reproduction)
    assert "1 seed did not reach AUC 0.7." in said(reproduction)
    assert [run.samples_to_target for run in reproduction.runs] == [1000, 1400, None]


@pytest.mark.parametrize(("reached", "kind"), [pytest.param(3, "good", marks=pytest.mark.slow), (2, "bad")])
def test_a_published_target_is_judged_by_reaching_it(tmp_path: Path, reached: int, kind: str) -> None:
    """The runs end above it, so that the interval of their means does not have it."""
    keys = ["train.target_auc=0.6", "published.auc=0.6"]
    seeds = write_seeds(tmp_path, 3, "train.target_auc=0.6")
    for seed in seeds[:reached]:
        edit(seed.directory / "summary.json", status="target_reached")
    config = composed("run.name=x", *keys)
    reproduction = summarise(config, [], seeds, finished_runs(seeds), {})
    (figure,) = [each for each in reproduction.figures if each.published is not None]
    assert figure.low is not None
    assert figure.low > 0.6
    assert figure.inside is (reached == 3)
    words = {"good": "each of 3 seeds reached", "bad": "1 of 3 seeds did not reach"}[kind]
    of_kind = [sentence for verdict_kind, sentence in reproduction.verdict if verdict_kind == kind]
    assert any(words in sentence and "eproduced" in sentence for sentence in of_kind)


def test_runs_of_two_commits_are_named(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 2)
    code = {"git_sha": "f" * 40, "dirty_diff_sha256": None, "sources_sha256": None}
    edit(seeds[1].directory / "manifest.json", code=code)
    reproduction = document(seeds)
    assert reproduction.commit is None
    assert "The runs were not made alike; they differ in code." in said(reproduction)


def test_seeds_of_two_configurations_get_no_verdict(tmp_path: Path) -> None:
    first, second = write_seeds(tmp_path / "a", 1), write_seeds(tmp_path / "b", 2, "optimizer.lr=0.5")[1:]
    reproduction = document([*first, *second], "published.test_auc=0.7", *PUBLISHED)
    assert "The runs were not made alike; they differ in optimizer.lr." in said(reproduction)
    assert "The configurations of the seeds differ (optimizer.lr), so there is no verdict." in said(reproduction)
    assert all(figure.inside is None for figure in reproduction.figures)


def test_the_number_of_slurms_job_is_no_difference(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 2)
    for seed in seeds:
        edit(seed.directory / "manifest.json", environment={"SLURM_JOB_ID": str(seed.number), "OMP_NUM_THREADS": "1"})
    assert "not made alike" not in said(document(seeds))


@pytest.mark.medium
def test_published_figures_of_groups_are_judged_as_others(tmp_path: Path) -> None:
    seeds = write_seeds(tmp_path, 3)
    for seed, hr in zip(seeds, (0.670, 0.672, 0.674), strict=True):
        evaluation = json.loads((seed.directory / "summary.json").read_bytes())["eval"]
        edit(seed.directory / "summary.json", eval={**evaluation, "hr_at_10": hr, "ndcg_at_10": hr / 2})
    reproduction = document(seeds, "published.hr_at_10=0.671", "published.ndcg_at_10=0.3963", "published.source=A")
    by_name = {(figure.split, figure.metric): figure for figure in reproduction.figures}
    reach = stats.t.ppf(0.975, 2) * 0.002 / np.sqrt(3)
    figure = by_name["val", "hr_at_10"]
    assert (figure.mean, figure.low, figure.high) == pytest.approx((0.672, 0.672 - reach, 0.672 + reach))
    assert (figure.inside, by_name["val", "ndcg_at_10"].inside) == (True, False)
    assert "Reproduced: HR@10 of val: published 0.67100 lies inside, mean 0.67200" in said(reproduction)
    assert "Not reproduced: NDCG@10 of val: published 0.39630 lies outside" in said(reproduction)
    page = reproduction_page(composed("run.name=x"), reproduction, finished_runs(seeds), tmp_path)
    assert "HR@10 of val" in page
    assert ("val", "hr_at_10") not in {(each.split, each.metric) for each in document(seeds).figures}


def test_nothing_published(tmp_path: Path) -> None:
    assert "no figure is published" in said(document(write_seeds(tmp_path, 2)))
