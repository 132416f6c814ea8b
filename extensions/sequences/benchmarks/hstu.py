"""HSTU's training step against the reference's PyTorch kernel: samples a second of one thread, memory of a step.

    python -m extensions.sequences.benchmarks.hstu --reference DIR [--dims 64 256] [--histories 50 200 1000]

DIR is a checkout of generative-recommenders (github.com/meta-recsys), whose model MLPerf's DLRMv4 trains; it wants the
packages triton and gin-config. Both models have the same tables, layers and optimizers; a step is forward, backward,
clipped Adam (each program's: ours is torch's in one operator), and row-wise Adagrad in the backward of FBGEMM's tables,
as both programs train. Batches are the same; rounds alternate. Memory is by how much a process grows in its first step.
Without --reference ours alone.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch import distributed as dist
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan

from app.config.model import Storage
from app.model.embeddings import TableInitRange, TableSpec
from benchmarks.result_file import write_result
from extensions.sequences.event_log import Sequences
from extensions.sequences.hstu import HSTU, EventArch, EventKeys
from extensions.sequences.keys import Attention, HSTUConfig

CONTEXT = [f"context_{number}" for number in range(8)]
HISTORY = ["item", "artist", "album"]
CANDIDATE = [f"candidate_{name}" for name in HISTORY]
ROWS, NUM_ACTIONS, TASK = 1_000, 3, "listen"


class Shape(NamedTuple):
    """Width of tables and transducer, and the longest history; two layers, of heads of at most 64."""

    dim: int
    history: int
    layers: int = 2

    @property
    def heads(self) -> int:
        return max(2, self.dim // 64)


def main() -> None:
    """Measure and print; write JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of each model in a round")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dims", type=int, nargs="+", default=[64])
    parser.add_argument("--histories", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    # One thread compares the arithmetic of both programs, not how they divide it.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    results = []
    for shape in starmap(Shape, product(arguments.dims, arguments.histories)):
        batches = [_batch(shape, arguments.batch, seed) for seed in range(arguments.steps)]
        steps = {"ours": _clickwork_step(shape)}
        if arguments.reference is not None:
            steps["reference"] = _reference_step(arguments.reference, shape)
        results.append(_measure(shape, steps, batches, arguments.rounds))
        print(json.dumps(results[-1]), flush=True)
    write_result(arguments, results)


def _measure(shape: Shape, steps: dict[str, Callable[[Any], float]], batches: list[Any], rounds: int) -> dict[str, Any]:
    """Return medians of samples a second and of the ratios of each round; MiB of a step."""
    rates: dict[str, list[float]] = {name: [] for name in steps}
    grown = {f"{name}_step_mib": _memory_growth(partial(step, batches[0])) for name, step in steps.items()}
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            for batch in batches:
                step(batch)
            samples = sum(len(batch["labels"]) for batch in batches)
            rates[name].append(samples / (time.perf_counter() - began))
    figures: dict[str, Any] = {**shape._asdict(), "heads": shape.heads, "batch": len(batches[0]["labels"]), **grown}
    figures |= {f"{name}_samples_per_second": round(statistics.median(values), 1) for name, values in rates.items()}
    if "reference" in rates:
        ratios = [clickwork / reference for clickwork, reference in zip(rates["ours"], rates["reference"], strict=True)]
        figures |= {"ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
    return figures


def _memory_growth(work: Callable[[], object]) -> int:
    """Return the MiB that the process grows by while `work` runs, at its highest, over what it holds before."""
    # Memory that earlier steps have freed would hide what this one needs.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the highest so far is what it has now
    before = _status_mib("VmRSS")
    work()
    return _status_mib("VmHWM") - before


def _status_mib(name: str) -> int:
    """Return a size of this process in MiB, such as VmRSS."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(f"{name}:"))


def _batch(shape: Shape, batch: int, seed: int) -> dict[str, Any]:
    """Return tensors of random ids, with histories of half the longest to the longest."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shape.history // 2, shape.history + 1, batch)
    # The longest history decides how far the reference pads, so each batch has one.
    lengths[0] = shape.history
    total = int(lengths.sum())

    def ids(count: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, ROWS, count))

    times = np.concatenate([np.sort(rng.integers(10**6, 2 * 10**6, length)) for length in lengths])
    last = times[lengths.cumsum() - 1]
    return {
        "lengths": torch.from_numpy(lengths),
        "labels": torch.from_numpy(rng.integers(0, 2, batch)),
        "context": [ids(batch) for _ in CONTEXT],
        "history": [ids(total) for _ in HISTORY],
        "candidate": [ids(batch) for _ in CANDIDATE],
        "times": torch.from_numpy(times),
        "actions": torch.from_numpy(rng.integers(1, 8, total)),
        "query": torch.from_numpy(last),
    }


def _shard_tables(tables: EmbeddingCollection) -> nn.Module:
    """Return tables as a process in training holds them: FBGEMM's, which apply row-wise Adagrad in their backward."""
    sharding = {
        table.name: table_wise(rank=0, device="cpu", compute_kernel="fused") for table in tables.embedding_configs()
    }
    sharder = EmbeddingCollectionSharder(
        {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 1e-3, "eps": 1e-8}
    )
    plan = construct_module_sharding_plan(tables, sharding, sharder, local_size=1, world_size=1, device_type="cpu")
    sharded = DistributedModelParallel(
        nn.ModuleDict({"tables": tables}),
        device=torch.device("cpu"),
        plan=ShardingPlan({"tables": plan}),
        sharders=[sharder],
    )
    sharded_tables: nn.Module = sharded.module["tables"]
    return sharded_tables


def _make_step(dense: list[nn.Parameter], loss_of: Callable[[Any], Tensor], fused: bool) -> Callable[[Any], float]:
    """Return a training step that maps a batch to its loss; the tables' optimizer is in their backward."""
    adam = torch.optim.Adam(dense, lr=1e-4, betas=(0.95, 0.999), eps=1e-8, fused=fused)

    def step(batch: Any) -> float:
        adam.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 1.0)
        adam.step()
        return loss.item()

    return step


def _clickwork_step(shape: Shape) -> Callable[[Any], float]:
    """Return the training step of Clickwork's HSTU, float32, without dropout."""
    keys: dict[str, tuple[str, ...]] = {name: (name,) for name in CONTEXT}
    keys |= {name: (name, candidate) for name, candidate in zip(HISTORY, CANDIDATE, strict=True)}
    arch = EventArch(
        [
            TableSpec(name, both, ROWS, shape.dim, TableInitRange(), Storage.fp32, mean=False, by_id=True)
            for name, both in keys.items()
        ]
    )
    assert isinstance(arch.rows, EmbeddingCollection)
    configs = [replace(table, init_fn=None) for table in arch.rows.embedding_configs()]
    arch.rows = _shard_tables(EmbeddingCollection(tables=configs, device=torch.device("meta")))
    width = shape.dim // shape.heads
    config = HSTUConfig(
        dim=shape.dim,
        num_layers=shape.layers,
        num_heads=shape.heads,
        attention_dim=width,
        hidden_dim=width,
        preprocessor_dim=256,
        item_dim=512,
        attention=Attention.bucketed,
    )
    model = HSTU(config, arch, shape.dim, EventKeys(tuple(CONTEXT), tuple(HISTORY), tuple(CANDIDATE), NUM_ACTIONS))
    dense = [value for name, value in model.named_parameters() if not name.startswith("sparse_arch")]

    def loss(batch: Any) -> Tensor:
        count = len(batch["labels"])
        ones = torch.ones(count, dtype=torch.int64)
        lengths = [ones] * len(CONTEXT) + [batch["lengths"]] * len(HISTORY) + [ones] * len(CANDIDATE)
        ids = KeyedJaggedTensor(
            keys=[*CONTEXT, *HISTORY, *CANDIDATE],
            lengths=torch.cat(lengths),
            values=torch.cat(batch["context"] + batch["history"] + batch["candidate"]),
        )
        divisor = float(len(CONTEXT) + int(batch["lengths"].max()) + 1)
        sequences = Sequences(
            batch["times"],
            batch["actions"].to(torch.uint8),
            batch["query"],
            batch["lengths"].tolist(),
            [1] * count,
            divisor,
        )
        logits = model(sequences, ids).squeeze(1)
        return 0.2 * nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"].float())

    return _make_step(dense, loss, fused=True)  # as app.optimizer makes it


def _reference_config(shape: Shape) -> Any:
    """Return the reference's DlrmHSTUConfig of a shape."""
    from generative_recommenders.modules.dlrm_hstu import DlrmHSTUConfig
    from generative_recommenders.modules.multitask_module import MultitaskTaskType, TaskConfig

    width = shape.dim // shape.heads
    return DlrmHSTUConfig(
        max_seq_len=shape.history + len(CONTEXT) + 1,
        max_num_candidates=1,
        hstu_num_heads=shape.heads,
        hstu_attn_linear_dim=width,
        hstu_attn_qk_dim=width,
        hstu_attn_num_layers=shape.layers,
        hstu_embedding_table_dim=shape.dim,
        hstu_preprocessor_hidden_dim=256,
        hstu_transducer_embedding_dim=shape.dim,
        hstu_input_dropout_ratio=0.0,
        hstu_linear_dropout_rate=0.0,
        contextual_feature_to_max_length=dict.fromkeys(CONTEXT, 1),
        contextual_feature_to_min_uih_length=dict.fromkeys(CONTEXT, 0),
        candidates_weight_feature_name="candidate_action",
        candidates_watchtime_feature_name="candidate_watch",
        candidates_querytime_feature_name="candidate_time",
        causal_multitask_weights=0.2,
        multitask_configs=[TaskConfig(TASK, 1, MultitaskTaskType.BINARY_CLASSIFICATION)],
        user_embedding_feature_names=[*HISTORY, *CONTEXT],
        item_embedding_feature_names=CANDIDATE,
        uih_post_id_feature_name="item",
        uih_action_time_feature_name="time",
        uih_weight_feature_name="action",
        hstu_uih_feature_names=[*CONTEXT, *HISTORY, "action", "time", "watch"],
        hstu_candidate_feature_names=[*CANDIDATE, "candidate_time", "candidate_action", "candidate_watch"],
        merge_uih_candidate_feature_mapping=[
            *zip(HISTORY, CANDIDATE, strict=True),
            ("time", "candidate_time"),
            ("action", "candidate_action"),
            ("watch", "candidate_watch"),
        ],
        action_weights=[1, 2, 4],
    )


def _reference_step(directory: Path, shape: Shape) -> Callable[[Any], float]:
    """Return the training step of the reference's DlrmHSTU with its kernels in PyTorch, float32, without dropout."""
    sys.path.insert(0, str(directory))
    from generative_recommenders.common import HammerKernel
    from generative_recommenders.modules.dlrm_hstu import DlrmHSTU

    configs = _reference_config(shape)
    keys = {name: [name, candidate] for name, candidate in zip(HISTORY, CANDIDATE, strict=True)}
    keys |= {name: [name] for name in CONTEXT}
    tables = {
        name: EmbeddingConfig(name=name, num_embeddings=ROWS, embedding_dim=shape.dim, feature_names=both)
        for name, both in keys.items()
    }
    model = DlrmHSTU(hstu_configs=configs, embedding_tables=tables, is_inference=False, bf16_training=False)
    # On the meta device, the unsharded tables take no memory; sharding allocates their own.
    collection = EmbeddingCollection(tables=list(tables.values()), device=torch.device("meta"))
    model._embedding_collection = _shard_tables(collection)
    model.recursive_setattr("_hammer_kernel", HammerKernel.PYTORCH)
    dense = [value for name, value in model.named_parameters() if not name.startswith("_embedding_collection")]

    def loss(batch: Any) -> Tensor:
        ones = torch.ones(len(batch["labels"]), dtype=torch.int64)
        lengths = [ones] * len(CONTEXT) + [batch["lengths"]] * (len(HISTORY) + 3)
        values = (
            batch["context"] + batch["history"] + [batch["actions"], batch["times"], torch.zeros_like(batch["times"])]
        )
        history = KeyedJaggedTensor(
            keys=[*CONTEXT, *HISTORY, "action", "time", "watch"], lengths=torch.cat(lengths), values=torch.cat(values)
        )
        values = batch["candidate"] + [batch["query"], batch["labels"], torch.zeros_like(batch["labels"])]
        candidates = KeyedJaggedTensor(
            keys=[*CANDIDATE, "candidate_time", "candidate_action", "candidate_watch"],
            lengths=torch.cat([ones] * 6),
            values=torch.cat(values),
        )
        losses = model(history, candidates)[2]
        return torch.stack(list(losses.values())).sum()

    return _make_step(dense, loss, fused=False)  # as its train_ranker does


if __name__ == "__main__":
    main()
