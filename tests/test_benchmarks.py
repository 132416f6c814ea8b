"""One entry lists all benchmarks; what bench-check finds."""

from pathlib import Path

import numpy as np

from benchmarks.__main__ import QUICK, describe
from benchmarks.check import ALPHA, became_slower

ROOT = Path(__file__).parents[1]


def test_every_benchmark_is_listed() -> None:
    programs = {path.stem for path in ROOT.glob("benchmarks/*.py") if "__main__" in path.read_text()}
    assert {*programs, "peers"} - {"__main__"} == {*QUICK}
    assert describe("evaluation")


def test_a_slowdown_of_five_percent_is_found_and_none_is_not() -> None:
    """With 2 % of noise in each of 16 rounds, and 18 cases."""
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.02, (300, 16)))
    verdicts = [[became_slower(list(factor * ratios), 1.03, ALPHA / 18) for ratios in noise] for factor in (1.0, 1.05)]
    assert np.mean(verdicts[0]) == 0
    assert np.mean(verdicts[1]) > 0.95
