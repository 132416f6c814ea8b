"""What was tried to make a step faster, each idea beside what it would replace: docs/performance.md's table.

    python -m benchmarks.ideas [--rounds 9] [--batch 2048] [--threads 1] [--out FILE]

Each round runs every variant once, in turn; a figure is the median over rounds, a ratio the median of the rounds'
ratios to the first variant of its group, which is the one in use. Kaggle shape (benchmarks.training_loop), its tables
cut at 1,000,000 rows. Memory is compared in processes of their own, since a process cannot go back.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.models.dlrm import InteractionArch

from app.config.train import RuntimeConfig
from app.model.layers import DotInteraction, mlp
from app.runtime import platform
from app.training.session import FiniteChecks
from benchmarks.result_file import write_result
from benchmarks.training_loop import KAGGLE_TABLES

DIM = 16
NUM_SPARSE = len(KAGGLE_TABLES)
MOST_ROWS = 1_000_000
LARGE_BATCH = 65_536

Variants = dict[str, Callable[[], object]]


def training(module: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    """Forward and backward of a module, its inputs' gradients too."""
    for values in inputs:
        values.requires_grad_(values.is_floating_point())

    def step() -> None:
        module(*inputs).sum().backward()

    return step


class OneProduct(nn.Module):
    """The dot interaction, left to autograd, with the pairs' gradient made symmetric first: one product for two."""

    def __init__(self, interaction: DotInteraction) -> None:
        super().__init__()
        self.interaction = interaction

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """As DotInteraction, other roundings."""
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        return torch.cat([dense, _Symmetric.apply(vectors, self.interaction.pairs, self.interaction.pair_of)], dim=1)


class _Symmetric(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, pairs: Tensor, pair_of: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pair_of)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        vectors, pair_of = ctx.saved_tensors
        matrix = nn.functional.pad(grad, (0, 1)).index_select(1, pair_of).view(-1, NUM_SPARSE + 1, NUM_SPARSE + 1)
        return torch.bmm(matrix + matrix.transpose(1, 2), vectors), None, None


def interactions(batch: int) -> Variants:
    """The dot interaction: flat index and own backward, TorchRec's, one product in the backward."""
    dense, sparse = torch.randn(batch, DIM), torch.randn(batch, NUM_SPARSE, DIM)
    clickwork, torchrec = DotInteraction(NUM_SPARSE, DIM, itself=False), InteractionArch(NUM_SPARSE)
    np.testing.assert_array_equal(clickwork(dense, sparse).numpy(), torchrec(dense, sparse).numpy())
    torch.testing.assert_close(OneProduct(clickwork)(dense, sparse), clickwork(dense, sparse))
    modules = {"own backward": clickwork, "TorchRec's": torchrec, "one product": OneProduct(clickwork)}
    return {name: training(module, dense.clone(), sparse.clone()) for name, module in modules.items()}


def over_arch_of(batch: int) -> tuple[nn.Sequential, Tensor]:
    """The larger perceptron, and inputs for it."""
    over_arch = mlp(DIM + NUM_SPARSE * (NUM_SPARSE + 1) // 2, [512, 256, 1], final_relu=False)
    return over_arch, torch.randn(batch, int(cast(nn.Linear, over_arch[0]).in_features))


def perceptrons(batch: int) -> Variants:
    """The larger perceptron: eager, and by torch.compile once it is compiled."""
    over_arch, inputs = over_arch_of(batch)
    compiled = training(cast(nn.Module, torch.compile(over_arch)), inputs.clone())
    compiled()
    return {"eager": training(over_arch, inputs.clone()), "torch.compile": compiled}


def lookups(batch: int) -> Variants:
    """Table-batched lookup and update: ids of 32 and of 64 bits; with one thread."""
    rows = [min(count, MOST_ROWS) for count in KAGGLE_TABLES]
    rng = np.random.default_rng(0)
    ids = np.concatenate([(rng.random(batch) ** 4 * count).astype(np.int32) for count in rows])
    offsets, grad = torch.arange(len(ids) + 1, dtype=torch.int32), torch.randn(batch, NUM_SPARSE * DIM)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(count, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for count in rows],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=0.1,
    )

    def with_type(dtype: torch.dtype) -> Callable[[], None]:
        bags = torch.from_numpy(ids).to(dtype), offsets.to(dtype)
        return lambda: tables(*bags).backward(grad)

    threads = torch.get_num_threads()

    def on_one_thread() -> None:
        torch.set_num_threads(1)
        try:
            tables(torch.from_numpy(ids), offsets).backward(grad)
        finally:
            torch.set_num_threads(threads)

    variants: Variants = {"int32 ids": with_type(torch.int32), "int64 ids": with_type(torch.int64)}
    return variants if threads == 1 else {**variants, "one thread": on_one_thread}


def losses(batch: int) -> Variants:
    """Binary cross-entropy of logits in one operator and in two."""
    logits, labels = torch.randn(batch), (torch.rand(batch) < 0.25).float()
    split = nn.functional.binary_cross_entropy
    return {
        "of logits": lambda: nn.functional.binary_cross_entropy_with_logits(logits.requires_grad_(), labels).backward(),
        "sigmoid first": lambda: split(torch.sigmoid(logits.requires_grad_()), labels).backward(),
    }


def health(batch: int) -> Variants:
    """The larger perceptron's step with the sums of its gradients, and without."""
    over_arch, inputs = over_arch_of(batch)
    watch = FiniteChecks(dict(over_arch.named_parameters()))

    def step() -> Tensor:
        loss = over_arch(inputs).sum()
        loss.backward()
        return loss

    return {"with sums": lambda: watch(step()), "without": step}


GROUPS: dict[str, Callable[[int], Variants]] = {
    "dot interaction": interactions,
    "over_arch": perceptrons,
    "lookup and update": lookups,
    "loss": losses,
    "finite or not": health,
}
MEMORY = """
import sys, time
import torch
from common.machine import keep_freed_memory
from benchmarks.ideas import LARGE_BATCH, over_arch_of
torch.set_num_threads(int(sys.argv[2]))
assert sys.argv[1] != "kept" or keep_freed_memory()
model, inputs = over_arch_of(LARGE_BATCH)
times = []
for _ in range(4):
    began = time.perf_counter()
    model(inputs).sum().backward()
    times.append(time.perf_counter() - began)
print(min(times[1:]))
"""


def memory(threads: int) -> dict[str, float]:
    """Seconds of a step of over_arch at a large batch: freed memory kept, or given back and taken afresh."""
    command = [sys.executable, "-c", MEMORY]
    return {
        how: float(subprocess.run([*command, how, str(threads)], check=True, capture_output=True, text=True).stdout)
        for how in ("kept", "given back")
    }


def rounds_of(variants: Variants, rounds: int) -> Iterator[dict[str, float]]:
    """Seconds of each variant, round by round; the first round warms up."""
    for number in range(rounds + 1):
        took = {}
        for name, work in variants.items():
            began = time.perf_counter()
            work()
            took[name] = time.perf_counter() - began
        if number:
            yield took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    platform.start(RuntimeConfig(num_threads=arguments.threads), seed=0, deterministic=False)
    measured = {name: list(rounds_of(make(arguments.batch), arguments.rounds)) for name, make in GROUPS.items()}
    platform.stop()
    measured[f"over_arch, {LARGE_BATCH:,} samples"] = [memory(arguments.threads) for _ in range(3)]
    table = {group: summarise(rounds) for group, rounds in measured.items()}
    print("| part | variant | ms | ratio |\n|---|---|---:|---:|")
    for group, variants in table.items():
        for name, (milliseconds, ratio) in variants.items():
            print(f"| {group} | {name} | {milliseconds:.3f} | {ratio:.2f} |")
    write_result(arguments, table)


def summarise(rounds: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each variant, and its median ratio to the first."""
    first = next(iter(rounds[0]))
    return {
        name: (statistics.median(r[name] for r in rounds) * 1e3, statistics.median(r[name] / r[first] for r in rounds))
        for name in rounds[0]
    }


if __name__ == "__main__":
    main()
