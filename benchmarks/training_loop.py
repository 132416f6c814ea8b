"""The whole training loop against bare computation, at facebookresearch/dlrm's Kaggle shape.

    python -m benchmarks.training_loop [--batch 128 2048] [--threads 1] [--rounds 7] [--seconds 4] [--out FILE]

Measured side by side in one process, round after round in turn, on the same rows:

  loop   app.training.loop as `make train` runs it: shards read, shuffled and checked, KeyedJaggedTensors built,
         DistributedModelParallel on gloo, fused SGD, losses gathered, steps timed, all but evaluation,
         checkpoints and the log
  sharded  the same model through DistributedModelParallel and its optimizer, in a plain loop over batches that lie
         ready in memory: what TorchRec asks for one process, without anything of app.training.loop
  bare   the same dense_arch, interaction and over_arch with one FBGEMM table-batched lookup and SGD, in a
         plain loop over batches that lie ready in memory
  mlps   dense_arch and over_arch alone, forward, backward and SGD

With --compiled, instead of them, `sharded` in fp32 and bf16, eager and with runtime.compile=dense, in turn:

    for threads in 1 2; do
      python -m benchmarks.training_loop --compiled --threads $threads --batch 128 512 2048 8192 65536
    done

A figure is wall time over steps of one round; the table gives medians over rounds, and medians of the ratios
within rounds. With --threads 1 pin the process to one core (taskset -c 0), so that the thread that reads ahead
has no core for nothing.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import nn

from app.config.app_config import CONFIG_DIR, AppConfig
from app.config.train import Precision, RuntimeConfig
from app.data.batch import Batch
from app.metrics.documents import EvaluationFigures
from app.metrics.timing import StepTimer
from app.model.dlrm import DLRM
from app.model.embeddings import make_sparse_arch
from app.runtime import platform
from app.training import session
from app.training.loop import TrainingLoop
from app.training.state import RunLength, RunState
from benchmarks.result_file import write_result
from common.compose import compose_config
from data_prep.dataset.format import Manifest, Shard, ShardArrays, Split, write_shard

# Rows of the tables of Criteo Kaggle without a frequency threshold.
KAGGLE_TABLES = [
    1460,
    583,
    10131227,
    2202608,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    8351593,
    3194,
    27,
    14992,
    5461306,
    10,
    5652,
    2173,
    4,
    7046547,
    18,
    15,
    286181,
    105,
    142572,
]
WINDOW_ROWS = 4 * 8192  # read ahead at a time; a round is whole windows, so that it pays for what it reads
ROWS = 18 * WINDOW_ROWS
SHARD_ROWS = 3 * WINDOW_ROWS
LEARNING_RATE = 0.1

KINDS = ("loop", "sharded", "bare", "mlps")

Step = Callable[[Batch], None]


def write_rows(root: Path, evaluated_rows: int = 0) -> Manifest:
    """Shards of rows with long-tailed ids: id = rows * u^4, u uniform; train, and val if it is to have rows."""
    rng = np.random.default_rng(0)
    splits: dict[str, list[Shard]] = {"train": []}
    sizes = [("train", SHARD_ROWS)] * (ROWS // SHARD_ROWS) + [("val", evaluated_rows)] * (evaluated_rows > 0)
    for number, (split, size) in enumerate(sizes):
        uniform = rng.random((size, len(KAGGLE_TABLES))) ** 4
        sparse = (uniform * np.array(KAGGLE_TABLES)).astype(np.int32)
        dense = np.log1p(rng.exponential(20, size=(size, 13))).astype(np.float32)
        labels = (rng.random((size, 1)) < 0.25).astype(np.int32)
        shard = write_shard(root, split, f"{number:05d}", ShardArrays(labels, dense, sparse))
        splits.setdefault(split, []).append(shard)
    features = {f"cat_{i}": count for i, count in enumerate(KAGGLE_TABLES)}
    return Manifest(
        schema={"label": "label", "dense": [f"int_{i}" for i in range(13)], "sparse": list(features)},
        encoding={"name": "benchmark"},
        num_embeddings=features,
        splits={name: Split(sum(shard.rows for shard in shards), 0.25, shards) for name, shards in splits.items()},
        sources=[],
        rows=ROWS + evaluated_rows,
        label_rate=0.25,
        tool_version="benchmark",
    )


def stream(train_session: session.Session) -> Iterator[Batch]:
    """Epoch after epoch."""
    for epoch in itertools.count():
        yield from train_session.split("train").train_batches(train_session.config.train.global_batch_size, 0, epoch, 0)


class Batches:
    """In place of a DataLoader: batches that go on from one round to the next."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The same iterator whatever the epoch."""
        return self._batches

    def forward_done(self) -> None:
        """No pipeline."""


class NotMeasured:
    """In place of the loop's evaluator, checkpointer, recorder and profiler: does nothing."""

    def evaluate(self, step: int) -> EvaluationFigures:
        """No AUC."""
        return EvaluationFigures(step=step, auc=None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def time_loop(train_session: session.Session, steps: int, batches: Iterator[Batch], checkpointer: Any = None) -> float:
    """Seconds a step of the real loop over the next of the batches."""
    config, nothing = train_session.config.train, NotMeasured()
    length = RunLength(train_session.split("train").num_batches(config.global_batch_size), steps, config)
    make: Any = TrainingLoop
    loop = make(
        session=train_session,
        data=Batches(batches),
        evaluator=nothing,
        checkpointer=checkpointer or nothing,
        recorder=nothing,
        profiler=nothing,
        timer=StepTimer(train_session.runtime.device),
        length=length,
        state=RunState(),
    )
    began = time.perf_counter()
    loop.run()
    return (time.perf_counter() - began) / steps


def time_plain(step: Step, batches: list[Batch], steps: int) -> float:
    """Seconds a step of a plain loop over batches in memory."""
    began = time.perf_counter()
    for number in range(steps):
        step(batches[number % len(batches)])
    return (time.perf_counter() - began) / steps


def tables_of(train_session: session.Session) -> nn.Module:
    """The tables' place in a model; they have no memory."""
    return make_sparse_arch(train_session.config.model, train_session.manifest.num_embeddings, [])


def sharded_step(train_session: session.Session) -> Step:
    """The run's own model and optimizer, with nothing around them."""

    def step(batch: Batch) -> None:
        train_session.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(train_session.forward(batch), batch.labels).backward()
        train_session.optimizer.step()

    return step


def compiled_steps(train_session: session.Session) -> dict[str, Step]:
    """The run's own model by precision, eager and compiled; both have the same parameters."""
    model = train_session.model.module
    model.compile_dense_layers()
    config, compiled = train_session.config, model._compiled

    def make(precision: Precision, program: Any) -> Step:
        inner = sharded_step(train_session)

        def step(batch: Batch) -> None:
            train_session.config = replace(config, runtime=replace(config.runtime, precision=precision))
            model._compiled = program
            inner(batch)

        return step

    return {
        f"{precision} {how}": make(precision, program)
        for precision in ("fp32", "bf16")
        for how, program in (("eager", None), ("compiled", compiled))
    }


def measure_compiled(
    train_session: session.Session, batches: list[Batch], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Rounds of each precision, eager and compiled in turn, once everything is compiled."""
    torch.compiler.reset()  # torch keeps the programs of eight shapes at most
    steps = compiled_steps(train_session)
    for step in steps.values():
        time_plain(step, batches, 2)
    count = max(1, round(arguments.seconds / time_plain(steps["fp32 eager"], batches, 2)))
    rounds = [{name: time_plain(step, batches, count) for name, step in steps.items()} for _ in range(arguments.rounds)]
    size = len(batches[0].labels)
    return {
        "batch": size,
        "steps a round": count,
        "samples/s": {name: size / float(np.median([r[name] for r in rounds])) for name in steps},
        "compiled faster by": {
            precision: float(np.median([r[f"{precision} eager"] / r[f"{precision} compiled"] for r in rounds]))
            for precision in ("fp32", "bf16")
        },
        "rounds": rounds,
    }


def print_compiled(threads: int, results: list[dict[str, Any]]) -> None:
    """A row a batch and precision."""
    print("| batch | threads | precision | eager samples/s | compiled samples/s | times faster |\n" + "|---" * 6 + "|")
    for result in results:
        for precision, ratio in result["compiled faster by"].items():
            eager, compiled = (result["samples/s"][f"{precision} {how}"] for how in ("eager", "compiled"))
            print(f"| {result['batch']} | {threads} | {precision} | {eager:,.0f} | {compiled:,.0f} | {ratio:.3f} |")


def bare_step(train_session: session.Session) -> Step:
    """One table-batched lookup, our dense modules, SGD."""
    model = DLRM(train_session.config.model, 13, 26, tables_of(train_session))
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(count, 16, EmbeddingLocation.HOST, ComputeDevice.CPU) for count in KAGGLE_TABLES],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=LEARNING_RATE,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    dense = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    sgd = torch.optim.SGD(dense, lr=LEARNING_RATE, fused=True)

    def step(batch: Batch) -> None:
        ids, offsets = batch.sparse_features.values(), batch.sparse_features.offsets()
        sparse = tables(ids, offsets).view(-1, 26, 16)
        logits = model.over_arch(model.interaction(model.dense_arch(batch.dense_features), sparse)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    return step


def mlps_step(train_session: session.Session) -> Step:
    """dense_arch and over_arch; what the interaction would give is constant."""
    model = DLRM(train_session.config.model, 13, 26, tables_of(train_session))
    dense = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    sgd = torch.optim.SGD(dense, lr=LEARNING_RATE, fused=True)

    def step(batch: Batch) -> None:
        hidden = model.dense_arch(batch.dense_features)
        pairs = hidden.new_ones(len(hidden), 27 * 26 // 2)
        logits = model.over_arch(torch.cat([hidden, pairs], dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    return step


def measure(
    batch_size: int, arguments: argparse.Namespace, runtime: platform.Runtime, root: Path, manifest: Manifest
) -> dict[str, Any]:
    """Rounds in turn at one batch size."""
    overrides = [
        "optimizer=sgd",
        f"optimizer.lr={LEARNING_RATE}",
        "schedule=constant",
        "loss=bce",
        f"train.global_batch_size={batch_size}",
        f"data.path={root}",
    ]
    overrides += [f"data.shuffle_block_rows={WINDOW_ROWS // 4}", "data.shuffle_window_blocks=4"]
    train_session = session.build(compose_config(AppConfig, CONFIG_DIR, overrides), runtime, root, manifest)
    batches, following = _first(stream(train_session), 8 if arguments.compiled else 50), stream(train_session)
    if arguments.compiled:
        return measure_compiled(train_session, batches, arguments)
    plain = [sharded_step(train_session), bare_step(train_session), mlps_step(train_session)]
    window_steps = max(1, WINDOW_ROWS // batch_size)
    steps = max(1, round(arguments.seconds / time_plain(plain[1], batches, 10) / window_steps)) * window_steps
    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds + 1):  # the first one warms up
        figures = [time_loop(train_session, steps, following), *(time_plain(step, batches, steps) for step in plain)]
        rounds += [dict(zip(KINDS, figures, strict=True))] if number else []
    medians = {kind: float(np.median([r[kind] for r in rounds])) * 1e3 for kind in KINDS}
    ratios = {f"loop/{kind}": float(np.median([r["loop"] / r[kind] for r in rounds])) for kind in KINDS[1:]}
    return {
        "batch": batch_size,
        "steps a round": steps,
        "ms a step": medians,
        "samples/s": {kind: batch_size / value * 1e3 for kind, value in medians.items()},
        "ratios": ratios,
        "rounds": rounds,
    }


def _first(batches: Iterator[Batch], count: int) -> list[Batch]:
    return [batch for batch, _ in zip(batches, range(count), strict=False)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one part of a round, about")
    parser.add_argument("--compiled", action="store_true", help="eager and compiled steps instead, fp32 and bf16")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runtime = platform.start(RuntimeConfig(num_threads=arguments.threads), seed=0, deterministic=False)
    with tempfile.TemporaryDirectory() as scratch:
        manifest = write_rows(Path(scratch))
        results = [measure(size, arguments, runtime, Path(scratch), manifest) for size in arguments.batch]
    platform.stop()
    write_result(arguments, results)
    if arguments.compiled:
        print_compiled(arguments.threads, results)
        return
    print(f"| batch | threads | {' | '.join(f'{kind} ms' for kind in KINDS)} | loop samples/s |", end="")
    print("".join(f" loop / {kind} |" for kind in KINDS[1:]) + "\n" + "|---" * (3 + 2 * len(KINDS) - 1) + "|")
    for result in results:
        figures = [f"{result['ms a step'][kind]:.2f}" for kind in KINDS]
        figures += [f"{result['samples/s']['loop']:,.0f}", *(f"{ratio:.3f}" for ratio in result["ratios"].values())]
        print(f"| {result['batch']} | {arguments.threads} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
