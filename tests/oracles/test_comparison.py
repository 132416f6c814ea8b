"""Comparisons of runs in every order of naming them, against SciPy on the figures that the runs' summaries hold."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from app.report.compare import Comparison, compare_auc, compare_scores, compare_speed, group_runs
from app.report.read import RunFiles, read_run
from tests.app.report.runs import write_run

SEEDS = (0, 1, 2)


def run_of(directory: Path, *overrides: str, seed: int, gain: float, step_ms: float = 10.0) -> RunFiles:
    return read_run(write_run(directory, *overrides, seed=seed, gain=gain, step_ms=step_ms))


@pytest.fixture(scope="module")
def best_and_last(tmp_path_factory: pytest.TempPathFactory) -> list[RunFiles]:
    """Three seeds, evaluated at their best and at their last checkpoint, and no other difference."""
    root = tmp_path_factory.mktemp("runs")
    return [
        run_of(root / f"{name}{seed}", f"checkpoint.keep_best={keep}", seed=seed, gain=gain, step_ms=step_ms)
        for name, keep, gain, step_ms in (("best", "true", 1.4, 10.0), ("last", "false", 1.0, 15.0))
        for seed in SEEDS
    ]


def auc_of(run: RunFiles) -> float:
    value = json.loads((run.directory / "summary.json").read_text())["eval"]["auc"]
    assert isinstance(value, float)
    return value


def orders(runs: list[RunFiles]) -> list[list[RunFiles]]:
    """Sixty of the orders of the runs, evenly spread."""
    every = list(itertools.permutations(runs))
    return [list(order) for order in every[:: max(len(every) // 60, 1)]]


def test_no_order_of_the_runs_changes_the_test(best_and_last: list[RunFiles]) -> None:
    best, last = ([auc_of(run) for run in best_and_last if run.name.startswith(name)] for name in ("best", "last"))
    expected = stats.ttest_rel(best, last)
    speeds = set()
    for order in orders(best_and_last):
        groups = group_runs(order)
        assert len(groups) == 2, "models of best and of last checkpoints are one configuration"
        auc, speed = compare_auc(*groups), compare_speed(*groups)
        assert auc is not None
        sign = -1 if order[0].name.startswith("best") else 1
        assert auc.figures.mean == pytest.approx(sign * (np.mean(best) - np.mean(last)))
        assert auc.figures.p == pytest.approx(expected.pvalue, rel=1e-6)
        assert speed is not None
        speeds.add((sign, speed.figures))
    assert len(speeds) == 2, "the speed ratio depends on the order within a configuration"


def test_the_run_of_a_single_interval_is_the_same_in_every_order(tmp_path: Path) -> None:
    """One configuration has two runs, the other one: the stretches of one run each are compared."""
    runs = [run_of(tmp_path / "a0", seed=0, gain=1.0), run_of(tmp_path / "a1", seed=1, gain=1.0, step_ms=12.0)]
    runs.append(run_of(tmp_path / "b0", "optimizer.lr=0.5", seed=0, gain=1.2))
    ratios = set()
    for order in itertools.permutations(runs):
        speed = compare_speed(*sorted(group_runs(list(order)), key=lambda one: one.runs[0].name))
        assert speed is not None
        ratios.add(speed.figures)
    assert len(ratios) == 1


def test_figures_of_one_seed_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, seed=0, gain=1.0 + 0.1 * (name == "other")) for name in ("a", "again", "other")]
    runs.append(run_of(tmp_path / "b", "optimizer.lr=0.5", seed=0, gain=1.2))
    for order in itertools.permutations(runs):
        sentences = [text for kind, text in Comparison(list(order)).sentences() if kind == "bad"]
        (sentence,) = [text for text in sentences if text.startswith("AUC")]
        assert "not comparable" in sentence
        figures = " and ".join(f"{auc_of(run):.7g} ({run.name})" for run in runs[:3])
        assert f"seed 0 have different figures, AUC {figures}; name one of them" in sentence
    alone = [text for kind, text in Comparison(runs[:3]).sentences() if kind == "bad"]
    assert any("Not reproduced: runs of one configuration and seed 0" in text for text in alone)


@pytest.mark.medium
def test_an_identical_repeat_counts_once(tmp_path: Path) -> None:
    runs = [
        *(run_of(tmp_path / f"a{seed}", seed=seed, gain=1.0) for seed in SEEDS),
        run_of(tmp_path / "a0again", seed=0, gain=1.0),
        *(run_of(tmp_path / f"b{seed}", "optimizer.lr=0.5", seed=seed, gain=1.2) for seed in SEEDS),
    ]
    for order in orders(runs):
        auc = compare_auc(*group_runs(order))
        assert auc is not None
        assert "paired t-test over the 3 seeds of both" in auc.text


def test_a_start_from_another_run_is_another_configuration(tmp_path: Path) -> None:
    fresh = run_of(tmp_path / "fresh", seed=0, gain=1.0)
    manifest = {"from_step": 50}
    continued = read_run(write_run(tmp_path / "on", "checkpoint.resume=runs/x", seed=0, manifest=manifest))
    assert len(group_runs([fresh, continued])) == 2
    never = run_of(tmp_path / "never", "checkpoint.resume=never", seed=0, gain=1.0)
    assert len(group_runs([fresh, never])) == 1


def test_runs_without_scores_have_no_pair(best_and_last: list[RunFiles]) -> None:
    assert all(compare_scores(*group_runs(order)) is None for order in orders(best_and_last)[:5])
