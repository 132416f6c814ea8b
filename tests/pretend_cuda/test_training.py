"""On pretended GPUs, training gives the CPU's bits: digests of all parameters and losses, and the evaluation.

A step whose dense layers are graphs (runtime.compile=step) has the bits of one whose kernels are sent one by one. As a
command it trains several runs in one process: `python -m tests.pretend_cuda.test_training CASES OUT`.
"""

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from tests.app.conftest import app_environment, launched_environment
from tests.app.datasets import write_dataset, write_ragged_dataset
from tests.fast_python import fast_python
from tests.once import made_once
from tests.pretend_cuda import device

pytestmark = pytest.mark.slow("processes")

DEVICES = {"PYTHONPATH": device.PYTHON_PATH, "PRETEND_CUDA_DEVICES": "2"}
LIMIT_SECONDS = 600  # a slow, busy machine takes a minute for what takes seconds elsewhere
# SGD: torch's other optimizers are fused on a CPU and go by lists of tensors on a GPU, which rounds differently.
TINY = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64", "train.log_every_steps=5"]
TINY += ["train.eval_every_steps=100", "train.max_steps=14", "runtime.num_threads=1", "optimizer=sgd"]
TINY += ["optimizer.lr=0.1", "sharding.types=table_wise", "baselines=false", "runtime.compile=none"]
ROWS = {"train": 1_000, "val": 200, "test": 20}


DIM_16 = ["model.embedding_dim=16", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"]
SMALL_DCN = ["model=dlrm_dcn", *DIM_16, "model.dcn_low_rank_dim=16"]
SMALL_PROJECTION = ["model=dlrm_projection", *DIM_16, *(f"model.projection_branch{n}=[32,64]" for n in (1, 2))]
REGULARISED = ["model.batch_norm=true", "model.dropout=0.3", "optimizer=adam", "optimizer.sparse_weight_decay=0.01"]
REGULARISED += ["optimizer.max_grad_norm=1", "optimizer.clip_tables=true", "optimizer.weight_decay=0.01"]
REGULARISED += ["sharding.types=data_parallel"]
QR_BAGS = ["+model.tables.overrides.tags.kind=qr", "+model.tables.overrides.tags.qr_collisions=3"]
QR_BAGS += ["+model.tables.overrides.genres.row_weights=learned"]
EXCHANGE = ["sharding.types=row_wise", "sharding.qcomm.forward=fp16", "sharding.qcomm.backward=bf16"]
PIPELINE = ["sharding.types=row_wise", "train.pipeline=sparse_dist", "train.eval_every_steps=5"]
ALONE = {
    "plain": [],
    "dcn": SMALL_DCN,
    "projection": SMALL_PROJECTION,
    "bf16": ["runtime.precision=bf16", "model.interaction=cat"],
    "fp16 tables": ["model.tables.storage=fp16"],
    "bags": QR_BAGS,
}
ON_TWO = {kind: [f"sharding.types={kind}"] for kind in ("column_wise", "table_row_wise", "grid_shard")}
ON_TWO |= {"exchange": EXCHANGE, "pipeline": PIPELINE, "skipped": ["train.on_nan=skip"], "regularised": REGULARISED}
GRAPHS_ALONE = {**ALONE, "regularised": REGULARISED, "adagrad": ["optimizer=adagrad", "optimizer.max_grad_norm=0.01"]}


def run(
    module: str, *arguments: str, cwd: Path, processes: int = 1, environment: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m module arguments` on each of `processes` processes of a machine with two pretended GPUs.

    It writes `.stdout` and `.stderr` in cwd. The status is the lowest that is not 0: of those ended by a signal first.
    """
    cwd.mkdir(parents=True, exist_ok=True)
    command_line = [str(fast_python(**DEVICES)), "-m", "tests.pretend_cuda", "-m", module, *arguments]
    variables = {**app_environment(), **DEVICES, **environment}
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    streams = cwd / ".stdout", cwd / ".stderr"
    running: list[subprocess.Popen[bytes]] = []
    try:
        with streams[0].open("wb") as out, streams[1].open("wb") as err:
            for rank in range(processes):
                env = variables | (
                    launched_environment(rank, processes, processes, store.port) if processes > 1 else {}
                )
                running.append(
                    subprocess.Popen(command_line, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                )
        statuses = sorted(process.wait(LIMIT_SECONDS) for process in running)
    finally:
        for process in running:
            process.kill()
    status = next(filter(None, statuses), 0)
    return subprocess.CompletedProcess(command_line, status, *(path.read_text() for path in streams))


def command(name: str, directory: Path, *arguments: str, **how: Any) -> str:
    """Return stdout of `python -m app.name` (or of a module of tests), which must succeed; `how` is for `run`.

    Of some hundred programs one ends in a segmentation fault within libtorch, where the pretended device's tensors are
    freed: it is started again, once, with a warning.
    """
    module = name if "." in name else f"app.{name}"
    process = run(module, *arguments, cwd=directory, **how)
    if process.returncode == -signal.SIGSEGV:
        warnings.warn(f"{module}: a segmentation fault of the pretended device", stacklevel=2)
        process = run(module, *arguments, cwd=directory, **how)
    assert process.returncode == 0, process.stderr
    return process.stdout


def train(directory: Path, data: Path, platform: str, *overrides: str, **how: Any) -> dict[str, Any]:
    """The summary of a whole run in `directory`/run; `how` is for `command`."""
    command("train", directory, *of_run(directory, data, platform), *overrides, **how)
    return summary(directory)


def train_several(
    directory: Path, data: Path, platform: str, cases: Mapping[str, Sequence[str]], **how: Any
) -> dict[str, dict[str, Any]]:
    """The summary of a run of each case, one after the other in the same processes."""
    directory.mkdir()
    runs = [[*of_run(directory / str(n), data, platform), *case] for n, case in enumerate(cases.values())]
    (directory / "cases").write_text(json.dumps(runs))
    command("tests.pretend_cuda.test_training", directory, "cases", "out", **how)
    return dict(zip(cases, json.loads((directory / "out").read_text()), strict=True))


def of_run(directory: Path, data: Path, platform: str) -> list[str]:
    """The overrides of a small run in `directory`/run."""
    return [*TINY, f"data.path={data}", f"runtime.platform={platform}", "run.name=run", f"run.dir={directory}/run"]


def differing(runs: Mapping[str, dict[str, Any]], others: Mapping[str, dict[str, Any]]) -> list[str]:
    """The cases whose digests of parameters and losses, or whose evaluations differ."""
    return [case for case in runs if not same(runs[case], others[case])]


def same(run: dict[str, Any], other: dict[str, Any]) -> bool:
    return (run["digest"], run["eval"]) == (other["digest"], other["eval"])


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run/summary.json").read_text())


@pytest.mark.parametrize("processes", [1, 2])
def test_bits(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = {"bags": [*QR_BAGS, f"data.path={ragged}"]}
    cases = {**(ALONE if processes == 1 else ON_TWO), **cases}
    cpu, cuda = (train_several(tmp_path / on, dataset, on, cases, processes=processes) for on in ("cpu", "cuda"))
    assert differing(cuda, cpu) == []


def test_two_gpus_have_the_bits_of_one(dataset: Path, tmp_path: Path) -> None:
    """By train.deterministic=layout."""
    keys = ["train.deterministic=layout", "train.micro_batch_size=16"]
    one, two = (train(tmp_path / str(n), dataset, "cuda", *keys, processes=n) for n in (1, 2))
    assert same(two, one)


def test_gpus_train_by_a_plan_of_the_planner_and_replay_it(dataset: Path, tmp_path: Path) -> None:
    train(tmp_path, dataset, "cuda", "sharding.types=null", processes=2)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert "data_parallel" in {table["type"] for table in manifest["plan"].values()}  # not table_wise, as on CPUs
    verified = json.loads(command("verify", tmp_path, f"run={tmp_path}/run", processes=2))
    assert verified["verdict"] == "identical"
    # it is the recorded plan that is replayed: another one is not chosen in its place
    for table in manifest["plan"].values():
        del table["shards"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    process = run("app.verify", f"run={tmp_path}/run", cwd=tmp_path, processes=2)
    assert "key 'plan.t_cat_0.shards' is missing" in process.stderr


def test_a_resumed_run_of_graphs_ends_as_the_whole_and_is_scored_on_a_cpu(dataset: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", dataset, "cuda", "sharding.kernels=fused_uvm")
    for steps in (6, 14):
        train(tmp_path, dataset, "cuda", "runtime.compile=step", f"train.max_steps={steps}")
    assert same(summary(tmp_path), whole)
    words = [f"run={tmp_path}/run", "split=val", "runtime.platform=cpu"]
    assert json.loads(command("evaluate", tmp_path, *words))["auc"] == whole["eval"]["auc"]


WITHOUT_WAITS = {
    "bags": [],
    "dcn": ["model=dlrm_dcn", *DIM_16],
    "bf16": ["runtime.precision=bf16"],
    "row-wise Adagrad": ["optimizer=rowwise_adagrad"],
    "graphs": ["runtime.compile=step", "optimizer=adagrad"],
}


def test_no_step_waits(dataset: Path, ragged: Path, tmp_path: Path) -> None:
    """See README.md for what a wait is."""
    cases = {
        case: [*keys, "train.log_every_steps=50", f"data.path={ragged if case == 'bags' else dataset}"]
        for case, keys in WITHOUT_WAITS.items()
    }
    counts = {"PRETEND_CUDA_COUNTS": f"{tmp_path}/counts"}
    train_several(tmp_path / "runs", dataset, "cuda", cases, environment=counts)
    steps = [json.loads(line) for line in (tmp_path / "counts.0").read_text(encoding="utf-8").splitlines()]
    for number, case in enumerate(WITHOUT_WAITS):
        waits = [step["waits"] for step in steps[14 * number : 14 * (number + 1)]]
        after_warm_up = {"aten::copy_": 1, "synchronize": 1}  # step 10
        assert waits[1:] == [{}] * 9 + [after_warm_up] + [{}] * 3, case
    assert steps[-12]["sent"]["graph"] == 4  # two each way; lookup, loss and optimizer stay outside them
    assert sum(steps[-12]["sent"].values()) == 37


GRAPHS_ON_TWO = {name: ON_TWO[name] for name in ("exchange", "pipeline", "skipped")}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id a bag."""
    if reason := device.why_not():
        pytest.skip(reason)
    made_once(tmp_path_factory, "pretend_cuda_library", lambda directory: device.library())
    return made_once(tmp_path_factory, "pretend_cuda_dataset", lambda root: write_dataset(root, ROWS))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags of none to many ids."""
    return made_once(tmp_path_factory, "pretend_cuda_ragged", lambda root: write_ragged_dataset(root, ROWS))


@pytest.mark.parametrize("processes", [1, 2])
def test_bits_of_graphs(processes: int, dataset: Path, ragged: Path, tmp_path: Path) -> None:
    cases = GRAPHS_ALONE if processes == 1 else GRAPHS_ON_TWO
    cases = {name: [*keys, *[f"data.path={ragged}"] * (name == "bags")] for name, keys in cases.items()}
    eager, graphs = (
        train_several(tmp_path / form, dataset, "cuda", of_form, processes=processes)
        for form in ("none", "step")
        for of_form in [{name: [*keys, f"runtime.compile={form}"] for name, keys in cases.items()}]
    )
    assert differing(graphs, eager) == []


if __name__ == "__main__":
    from tests.app.group import train_runs

    train_runs(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
