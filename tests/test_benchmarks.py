"""One entry lists and runs all benchmarks; what bench-check finds; how peers are given rows and timed."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import first_gpu_run
from benchmarks.__main__ import QUICK, describe
from benchmarks.check import ALPHA, became_slower, print_table
from benchmarks.peers import facebookresearch, rows
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


# As the two programs print them, with the second in which each line came and ended.
PRINTED: dict[facebookresearch.Program, list[tuple[float, float, str]]] = {
    facebookresearch.DLRM_S: [
        (0, 0, "Reading pre-processed data=none.npz"),
        (1, 1, ':::MLLOG {"event_type": "INTERVAL_START", "key": "epoch_start", "value": null}'),
        (4, 4, "Finished training it 20/40 of epoch 0, -1.00 ms/it, loss 0.5"),
        (5, 5, "recall 0.1, precision 0.2, f1 0.1, ap 0.3, auc 0.6500, best auc 0.6500, accuracy 75 %, best 0 %"),
        (7, 7, "Finished training it 40/40 of epoch 0, -1.00 ms/it, loss 0.4"),
        (9, 9, "recall 0.1, precision 0.2, f1 0.1, ap 0.3, auc 0.7000, best auc 0.7000, accuracy 75 %, best 0 %"),
    ],
    facebookresearch.DLRM_MAIN: [
        (1, 1.5, "Epoch 0:   0%|          | 0/40 [00:00<?, ?it/s]"),
        (3, 4, "Epoch 0:  50%|#####     | 20/40 [00:03<00:03,  6.6it/s]Total number of iterations: 20"),
        (4, 5, "Evaluating val set: 100%|###| 4/4 [00:01<00:00,  4.0it/s]AUROC over val set: 0.65."),
        (7, 7, "Total number of iterations: 40"),
        (8, 9, "AUROC over val set: 0.7."),
        (9, 10, "AUROC over val set: 0.7."),
        (10, 11, "AUROC over test set: 0.8."),
    ],
}


@pytest.mark.parametrize("program", PRINTED, ids=lambda program: program.file)
def test_the_programs_of_facebookresearch_are_timed_without_their_evaluations(
    program: facebookresearch.Program,
) -> None:
    lines = [facebookresearch.Line(*line) for line in PRINTED[program]]
    assert facebookresearch.read_points(program, lines, 10) == [Point(200, 3.0, 0.65), Point(400, 5.0, 0.7)]


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_first_run_on_a_gpu_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["first_gpu_run", "--out", str(tmp_path / "gpu")])
    with pytest.raises(SystemExit) as ended:
        first_gpu_run.main()
    assert ended.value.code == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


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
