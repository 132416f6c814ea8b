"""One entry lists and runs all benchmarks; what bench-check finds; how peers are given rows and timed."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import QUICK, describe
from benchmarks.check import ALPHA, became_slower, print_table
from benchmarks.peers import rows
from benchmarks.peers.curve import Point, reach
from data_prep.dataset.format import load_manifest, open_shard
from tests.fast_python import fast_python

ROOT = Path(__file__).parents[1]


def test_every_benchmark_is_listed() -> None:
    programs = {path.stem for path in ROOT.glob("benchmarks/*.py") if "__main__" in path.read_text()}
    assert {*programs, "peers"} - {"__main__"} == {*QUICK}
    assert describe("evaluation")


@pytest.mark.slow("tool")
@pytest.mark.parametrize("name", ["evaluation", "input_path"])
def test_a_benchmark_runs_quickly(name: str) -> None:
    command = [str(fast_python()), "-m", "benchmarks", "--quick", name]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"{name} " in process.stdout


def test_a_slowdown_of_five_percent_is_found_and_none_is_not() -> None:
    """With 2 % of noise in each of 16 rounds, and 18 cases."""
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.02, (300, 16)))
    verdicts = [[became_slower(list(factor * ratios), 1.03, ALPHA / 18) for ratios in noise] for factor in (1.0, 1.05)]
    assert np.mean(verdicts[0]) == 0
    assert np.mean(verdicts[1]) > 0.95


@pytest.mark.parametrize("cases", [1, 4, pytest.param(18, marks=pytest.mark.slow)])
def test_too_few_rounds_are_said_to_be_too_few(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One fewer than those it names cannot find a case that became slower in each of them."""
    assert print_table({str(case): [1.5, 1.6, 1.7] for case in range(cases)}, 1.03) == 0
    enough = int(capsys.readouterr().out.split("give --rounds ")[1].split()[0])
    for rounds, status in ((enough - 1, 0), (enough, 1)):
        ratios = [1.5 + number / 100 for number in range(rounds)]
        assert print_table({str(case): ratios for case in range(cases)}, 1.03) == status
        assert ("give --rounds" in capsys.readouterr().out) == (not status)


def test_the_time_to_an_auc_is_linear_between_evaluations_and_none_if_it_is_not_reached() -> None:
    points = [Point(100, 2.0, 0.6), Point(200, 4.0, 0.7), Point(300, 6.0, 0.65)]
    assert reach(points, 0.65) == pytest.approx((150, 3.0, 0.65))
    assert reach(points, 0.55) == pytest.approx((50, 1.0, 0.55))
    assert reach(points, 0.71) is None


def test_every_program_is_given_the_same_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def draw(count: int) -> rows.Rows:
        integers = rng.integers(0, 1000, (count, rows.NUM_DENSE))
        return rows.Rows(
            rng.integers(0, 2, count).astype(np.float32),
            np.log(integers.astype(np.float32) + 1),
            rng.integers(0, 9, (count, rows.NUM_SPARSE)),
        )

    splits = {"train": draw(50), "test": draw(7)}
    features = {f"cat_{i}": 9 for i in range(rows.NUM_SPARSE)}
    rows.write_clickwork(tmp_path / "ours", splits, features)
    rows.write_torchrec(tmp_path / "torchrec", splits)
    rows.write_dlrm_s(tmp_path / "dlrm_s", splits, list(features.values()))
    manifest = load_manifest(tmp_path / "ours")
    for split, name, days, times in (("train", "train", range(23), 1), ("test", "val", [23], 2)):
        source_rows = splits[split]
        (shard,) = manifest.splits[name].shards
        arrays = open_shard(tmp_path / "ours", name, shard, manifest)
        npz = [np.load(tmp_path / f"dlrm_s/day_{day}_reordered.npz") for day in days]
        for kind, key in (("labels", "y"), ("dense", "X_int"), ("sparse", "X_cat")):
            expected = getattr(source_rows, kind).reshape(len(source_rows.labels), -1)
            repeated = np.concatenate([expected] * times)
            npy = np.concatenate([np.load(tmp_path / f"torchrec/day_{day}_{kind}.npy") for day in days])
            dlrm_s_array = np.concatenate([day[key] for day in npz]).reshape(len(repeated), -1)
            np.testing.assert_array_equal(getattr(arrays, kind), expected)
            np.testing.assert_array_equal(npy, repeated)
            np.testing.assert_array_equal(
                np.log(dlrm_s_array.astype(np.float32) + 1) if kind == "dense" else dlrm_s_array, repeated
            )


@pytest.mark.slow("tool")
def test_peers_learn_and_those_that_are_not_there_are_named(tmp_path: Path) -> None:
    """With DLRM=DIR, a clone of facebookresearch/dlrm, its two programs too."""
    out, clone = tmp_path / "out.json", os.environ.get("DLRM")
    command = [str(fast_python()), "-m", "benchmarks.peers", "--quick", "--out", str(out)]
    command += ["--dlrm", clone] if clone else []
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    results = json.loads(out.read_bytes())["results"]
    assert {"clickwork", "clickwork_bf16", "torchrec_dlrm"} <= set(results["programs"])
    for name, result in results["programs"].items():
        (curve,) = result["curves"]
        assert [point[0] for point in curve] == [512 * part for part in range(1, 9)], name
        assert np.all(np.diff([point[1] for point in curve]) > 0), name
        assert 0.7 < curve[-1][2] < results["best_auc"], name
        assert f"| `{name}` | " in process.stdout
    if importlib.util.find_spec("fuxictr") is None:
        assert "has no fuxictr; see benchmarks/peers/README.md" in process.stderr
    if not clone:
        assert "dlrm_s_pytorch: needs --dlrm DIR" in process.stderr
