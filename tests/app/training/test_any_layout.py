"""train.deterministic=layout: the same bits on any number of processes and threads, interrupted or not."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from app.config.data import DataConfig
from app.config.train import MICRO_BATCH
from app.data.split import SplitReader
from app.optimizer import clip, total_norm
from app.runtime.platform import are_equal_on_threads
from app.training.predictor import Node, TreeSum
from benchmarks import training_loop
from data_prep.dataset.format import load_manifest, save_manifest
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.app.run_files import events, summary
from tests.covering import Case, covering_cases
from tests.once import made_once

LAYOUT = "train.deterministic=layout"
UNEVEN = ["train.drop_last=false", "eval.exact_rows=100"]  # metrics and curves from histograms, too
FACTORS: dict[str, dict[str, list[str]]] = {
    "rows": {
        "clicks": ["train.global_batch_size=96", "train.micro_batch_size=16"],
        "last batch": ["train.global_batch_size=100", "train.micro_batch_size=16", *UNEVEN],
        "bags": ["train.global_batch_size=96", "train.micro_batch_size=16"],
        "wide": ["train.global_batch_size=500", "train.micro_batch_size=250", "model.dense_arch=[512,256,16]"],
    },
    "optimizer": {name: [f"optimizer={name}"] for name in ("adagrad", "rowwise_adagrad", "adam", "lamb", "sgd")},
    "interaction": {name: [f"model.interaction={name}"] for name in ("dot", "cat", "dcn", "projection")},
    "regularisation": {
        "none": [],
        "dropout": ["model.dropout=0.3"],
        "batch norm": ["model.batch_norm=true", "model.dropout=0.1"],
        "clipping": ["optimizer.max_grad_norm=0.1"],
        "decay": ["optimizer.sparse_weight_decay=1e-3", "optimizer.clip_tables=true", "optimizer.max_grad_norm=0.1"],
    },
    "sharding": {name: [f"sharding.types={name}"] for name in ("table_wise", "column_wise", "row_wise", "null")},
    "layout": {"2x1": [], "2x2": [], "3x1": [], "4x1": []},
    "course": {"whole": [], "begun by one process": [], "ended by one process": []},
}


@functools.cache
def several_threads() -> int:
    """Return 2, or 1 where products depend on threads, so that several are refused (see runtime/test_platform.py)."""
    threads = torch.get_num_threads()
    try:
        return 2 if are_equal_on_threads(2) else 1
    finally:
        torch.set_num_threads(threads)


def is_valid(case: Case) -> bool:
    """Leave out what the commands refuse."""
    replicated = case["regularisation"] == "decay" or case["optimizer"] in ("adam", "lamb")
    refused = (
        case["regularisation"] == "decay" and case["optimizer"] == "lamb",
        case["sharding"] == "column_wise" and case["optimizer"] not in ("adagrad", "sgd"),
        case["rows"] == "bags" and case["sharding"] == "row_wise",
        case["rows"] == "wide" and case["layout"] in ("3x1", "4x1"),
        replicated and case["sharding"] != "null",
    )
    return not any(refused)


CASES = covering_cases({factor: list(values) for factor, values in FACTORS.items()}, is_valid)
FIRST = {factor: next(iter(values)) for factor, values in FACTORS.items()}
KeysOf = Callable[[Case], list[str]]


def write_small_rows(kind: str, root: Path) -> None:
    if kind == "bags":
        write_ragged_dataset(root, {"train": 700, "val": 201, "test": 10})
    else:
        write_dataset(root, {"train": 1_100, "val": 201, "test": 50}, shard_rows=300)


@pytest.fixture
def keys_of(tmp_path_factory: pytest.TempPathFactory) -> KeysOf:
    """The overrides of a case, without those of its layout."""

    def overrides_of(case: Case) -> list[str]:
        rows = "bags" if case["rows"] == "bags" else "clicks"
        root = made_once(tmp_path_factory, f"any_layout_{rows}", functools.partial(write_small_rows, rows))
        overrides = [f"data.path={root}", *SMALL, LAYOUT, "train.max_steps=12", "train.epochs=50", "optimizer.lr=0.02"]
        overrides += ["train.eval_every_steps=6", "checkpoint.every_steps=4", "record.tensorboard=false"]
        return overrides + [key for factor, values in FACTORS.items() for key in values[case[factor]]]

    return overrides_of


def bits(run: Path) -> dict[str, Any]:
    """Return what no layout may change."""
    names = ("step", "steps", "loss", "accuracy", "gradient_norm", "auc", "logloss", "ne", "calibration", "ece")
    logged = [{name: event.get(name) for name in names} for kind in ("train", "eval") for event in events(run, kind)]
    return {"digest": summary(run)["digest"], "curves": json.loads((run / "curves.json").read_text()), "events": logged}


@pytest.mark.slow("processes")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_bits_do_not_depend_on_the_layout(run_app: Command, keys_of: KeysOf, tmp_path: Path, number: int) -> None:
    """Two runs: one process with one thread, and the case's layout, of the whole run, its beginning or its end."""
    case = CASES[number]
    overrides = keys_of(case)
    run_app("train", *overrides, "run.name=one")
    processes, threads = map(int, case["layout"].split("x"))
    several = [*overrides, "run.name=several", f"runtime.num_threads={min(threads, several_threads())}"]
    courses = {"whole": [processes], "begun by one process": [1, processes], "ended by one process": [processes, 1]}
    *first, last = courses[case["course"]]
    for count in first:
        run_app("train", *several, "train.max_steps=8", processes=count)
    ended = run_app("train", *several, processes=last)
    assert ("the same bits" in ended.stderr) == (case["course"] != "whole")
    one, other = (bits(tmp_path / "runs" / name) for name in ("one", "several"))
    assert one["digest"] == other["digest"]
    assert case["course"] != "whole" or one == other


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("shape", "steps"), [("quickstart", 40), ("kaggle", 30)])
def test_many_steps_of_a_whole_model(
    run_app: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, steps: int
) -> None:
    """The shape of the default run, and that of Criteo Kaggle (`benchmarks.training_loop`) with shorter tables."""
    overrides = [LAYOUT, f"train.max_steps={steps}", f"train.eval_every_steps={steps // 2}", "record.tensorboard=false"]
    if shape == "quickstart":
        overrides.append("data.synthetic.rows=20000")
    else:
        monkeypatch.setattr(training_loop, "ROWS", training_loop.SHARD_ROWS)
        monkeypatch.setattr(training_loop, "KAGGLE_TABLES", [min(rows, 50_000) for rows in training_loop.KAGGLE_TABLES])
        save_manifest(tmp_path / "kaggle", training_loop.write_rows(tmp_path / "kaggle", evaluated_rows=2_000))
        overrides += ["data.path=kaggle", "train.global_batch_size=1024"]
    run_app("train", *overrides, "run.name=one", "runtime.num_threads=1")
    run_app("train", *overrides, "run.name=several", f"runtime.num_threads={several_threads()}", processes=2)
    assert bits(tmp_path / "runs/several") == bits(tmp_path / "runs/one")


@pytest.mark.slow("processes")
def test_a_run_of_two_processes_is_identical_on_others(run_app: Command, keys_of: KeysOf, tmp_path: Path) -> None:
    run_app("train", *keys_of(FIRST), "run.name=x", "eval.keep_scores=1000", processes=2)
    for processes, threads in ((1, several_threads()), (3, 1)):
        verified = run_app("verify", "run=runs/x", f"runtime.num_threads={threads}", processes=processes)
        report = json.loads(verified.stdout)
        assert (report["verdict"], report["changed_since"], report["lacking"]) == ("identical", [], [])


@pytest.mark.slow("processes")
def test_the_size_of_micro_batches_is_recorded(run_app: Command, small: list[str], tmp_path: Path) -> None:
    """So that a later default changes no replay; another size is another run."""
    overrides = [*small, LAYOUT, "run.name=x"]
    run_app("train", *overrides, "train.max_steps=2")
    assert yaml.safe_load((tmp_path / "runs/x/config.yaml").read_text())["train"]["micro_batch_size"] == MICRO_BATCH
    refusal = run_app("train", *overrides, "train.max_steps=4", "train.micro_batch_size=64", status=2)
    assert "train.micro_batch_size" in refusal.stderr


@pytest.mark.slow("processes")
def test_without_it_the_bits_depend_on_the_layout(run_app: Command, keys_of: KeysOf, tmp_path: Path) -> None:
    overrides = [each for each in keys_of(FIRST) if "micro_batch" not in each and each != LAYOUT]
    run_app("train", *overrides, "run.name=one")
    run_app("train", *overrides, "run.name=several", processes=2)
    assert bits(tmp_path / "runs/several") != bits(tmp_path / "runs/one")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 13])
def test_a_tree_sum_has_the_same_bits_whoever_adds_which_part(count: int) -> None:
    """Against a recursive sum in NumPy; parts are cut at drawn places, and each part's nodes travel."""
    rng = np.random.default_rng(count)
    values = (rng.standard_normal((count, 50)) * 10.0 ** rng.integers(-4, 4, (count, 1))).astype(np.float32)

    def expected(start: int, level: int) -> Any:
        if start >= count:
            return None
        if level == 0:
            return values[start]
        left, right = expected(start, level - 1), expected(start + (1 << (level - 1)), level - 1)
        return left if right is None else left + right

    total = expected(0, 4)
    for _ in range(20):
        cuts = sorted(rng.integers(0, count + 1, 3).tolist())
        tree = TreeSum()
        for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
            part = TreeSum()
            for number in range(start, stop):
                part.add(Node(0, number, [torch.from_numpy(values[number].copy())]))
            for node in part.nodes:
                tree.add(node)
        np.testing.assert_array_equal(tree.total()[0].numpy(), total)


@pytest.mark.parametrize(("rows", "batch", "processes"), [(700, 96, 3), (700, 100, 4), (64, 64, 1), (301, 100, 2)])
def test_processes_take_whole_micro_batches(tmp_path: Path, rows: int, batch: int, processes: int) -> None:
    """Together the valid rows of all processes are those of one process, whose parts are all equally large."""
    write_dataset(tmp_path, {"train": rows, "val": 10, "test": 10}, shard_rows=128)
    manifest, config = load_manifest(tmp_path), DataConfig(shuffle_block_rows=16)

    def batches(rank: int, world_size: int, micro_batch: int | None) -> list[Any]:
        split = SplitReader(tmp_path, manifest, "train", config, rank, world_size, False, micro_batch)
        return list(split.train_batches(batch, seed=1, epoch=2, first=0))

    one = batches(0, 1, None)
    parts = [batches(rank, processes, 16) for rank in range(processes)]
    for number, whole in enumerate(one):
        dense = torch.cat([part[number].dense_features[: part[number].num_valid] for part in parts])
        torch.testing.assert_close(dense, whole.dense_features[: whole.num_valid], rtol=0, atol=0)
        (size,) = {len(part[number].labels) for part in parts}
        assert size % 16 == 0
        assert {part[number].num_global for part in parts} == {len(dense)}
    assert len(one) == -(-rows // batch)


def test_norms_are_torch_s_and_of_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(size, generator=generator) for size in [(300, 401), (70_001,), (1,), (3, 5)]]
    norms = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        norms.append(total_norm(gradients))
    torch.set_num_threads(1)
    assert len({float(norm) for norm in norms}) == 1
    expected = np.sqrt(sum(np.square(each.numpy().astype(np.float64)).sum() for each in gradients))
    assert float(norms[0]) == pytest.approx(expected, rel=1e-6)
    clipped = [each.clone() for each in gradients]
    clip(clipped, 2.0)
    for each, before in zip(clipped, gradients, strict=True):
        torch.testing.assert_close(each, before * (2.0 / expected), rtol=1e-5, atol=0)
    clip(clipped, 3.0)
    assert float(total_norm(clipped)) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("model.batch_norm=true train.micro_batch_size=5 train.drop_last=false", "a micro-batch of one (5 each)"),
        ("model.tables.kind=mixed_dimension model.tables.min_rows=1", "give model.tables.kind=plain"),
        ("+model.tables.overrides.cat_0={pooling:weighted}", "give model.tables.pooling=sum"),
    ],
)
def test_what_cannot_be_so_is_refused(
    refused_command: Refusal, dataset: Path, tmp_path: Path, overrides: str, words: str
) -> None:
    """Check refusals of a dataset; those of a configuration alone: tests/app/config/test_config.py."""
    assert words in refused_command("train", *SMALL, f"data.path={dataset}", "run.name=x", LAYOUT, *overrides.split())
    assert not (tmp_path / "runs/x/checkpoints").exists()
