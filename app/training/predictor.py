"""A model, declared, sharded, initialised, and its evaluation; micro-batches of any layout.

A sum of floats depends on its order, and a product of matrices on their shapes. Here both are fixed. The rows of the
global batch form micro-batches of train.micro_batch_size rows; forward and backward of the dense layers run on one
micro-batch at a time, whichever process has it, and gradients of the micro-batches are added by a binary tree over
their numbers. Batch norm computes its statistics per micro-batch, and the running statistics move towards their mean.
Tables need no micro-batches: FBGEMM adds the gradients of a row in the order of the global batch.

Shapes: B samples of this process, M of a micro-batch, F sparse features, D embedding_dim.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.modules.embedding_configs import PoolingType

from app.checkpoint.saver import load_tensors
from app.config.app_config import AppConfig
from app.config.data import DataConfig, part_size
from app.config.kinds import METRICS, TASKS, Task, require_dataset
from app.config.sharding import Plan
from app.config.train import LAYOUT, metrics_of, samples_of
from app.data.batch import Batch, copied_ahead
from app.data.split import TRAIN, EvaluatedSplit, Split, SplitReader
from app.metrics.documents import EvaluationFigures
from app.metrics.quality import (
    MAX_SAMPLES,
    all_rows_sums,
    click_metrics,
    click_sums,
    group_metrics,
    histogram_metrics,
    number_metrics,
    of_all_rows,
    score_counts,
)
from app.model.dlrm import DLRM, Loss, make_model, make_tables
from app.model.embeddings import Features, TableArch, initial_rows, table_of
from app.model.layers import BatchNorm
from app.runtime.platform import Runtime, ScalarT
from app.sharding import planner
from app.sharding.plan import distribute, fill_tables
from app.trackers import configured_trackers
from common.command import log
from common.documents import convert
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.format import Manifest, kept_share, logit_correction


def sharded_model(
    config: AppConfig,
    runtime: Runtime,
    root: Path,
    manifest: Manifest,
    fused_params: dict[str, Any],
    initial: bool = True,
) -> tuple[DistributedModelParallel, Plan]:
    """Return the sharded model and its plan; a collective call.

    fused_params: FBGEMM's parameters of the optimizer that updates tables in their backward. initial: whether to fill
    tables and row weights with initial values; otherwise a checkpoint must fill them.
    """
    require_dataset(config.model.kind, root, manifest)
    if not manifest.num_embeddings:
        raise UserError(f"{root}: DLRM needs at least one sparse feature")
    torch.manual_seed(config.train.seed)  # dense layers draw their values from it in the order of their declaration
    features = Features(
        manifest.num_embeddings,
        len(manifest.schema.get("dense", [])),
        planner.multi_hot_features(config.data.multi_hot, manifest),
        manifest.encoding.get("raw_schema"),
    )
    sparse_arch = make_tables(config, features, initial)
    plan = planner.plan_for(config, runtime, sparse_arch, planner.bag_sizes_of(config, root, manifest))
    if config.train.micro_batch is not None:
        _require_layout(sparse_arch, plan, features.multi_hot)
    # Micro-batches weigh their rows by the global batch, so nothing may divide gradients by the number of processes.
    model = distribute(
        make_model(config, sparse_arch, features),
        plan,
        fused_params,
        config.sharding.qcomm,
        runtime.device,
        averages=config.train.micro_batch is None,
    )
    # Tables are filled after sharding: each process draws its own rows, and none needs memory for a whole table.
    if initial:
        tables = {table.name: table for table in sparse_arch.tables}
        fill_tables(model, lambda table, start, stop: initial_rows(config.train.seed, tables[table], start, stop))
    return model, plan


def _require_layout(sparse_arch: TableArch, plan: Plan, multi_hot: Collection[str] | None) -> None:
    """Raise UserError for tables whose bits would depend on the number of processes or threads."""
    setting = f"train.deterministic={LAYOUT}"
    for form, instead in sparse_arch.settings_before_layers.items():
        raise UserError(
            f"model.tables.{form}: not with {setting}: dense parameters follow its lookup; give "
            f"model.tables.{form.partition('=')[0]}={instead}, or train.deterministic=true"
        )
    kinds = {table.type for table in plan.tables.values()}
    if "data_parallel" in kinds and len(kinds) > 1:
        raise UserError(
            f"sharding: some tables are data_parallel: not with {setting}, as torch updates those and FBGEMM the "
            "others, and another number of processes leads to another division; give sharding.types=table_wise"
        )
    by_rows = sorted(kind for kind in kinds if kind not in ("table_wise", "column_wise", "data_parallel"))
    if by_rows and multi_hot:
        raise UserError(
            f"sharding.types={by_rows[0]}: not with {setting} for bags of several ids, whose sum is then one of "
            "processes' sums; give sharding.types=table_wise or column_wise"
        )


def require_column(key: str, column: str, config: DataConfig, root: Path, manifest: Manifest) -> None:
    """Refuse a key's value that is not the name of a column with one id per row."""
    features, bags = list(manifest.num_embeddings), planner.multi_hot_features(config.multi_hot, manifest)
    if column not in features or column in bags:
        single = [feature for feature in features if feature not in bags]
        fault = "has bags of ids" if column in features else f"is not a categorical column of {root}"
        remedy = f"give one of {', '.join(single)}" if single else "give another dataset"
        raise UserError(f"{key}={column}: {fault}; {remedy}")


def task_of(manifest: Manifest) -> Task:
    """Return the task of a dataset's labels."""
    return TASKS[manifest.label_kind.value]


def refuse_one_class(config: DataConfig, root: Path, manifest: Manifest) -> None:
    """Refuse a train split whose labels are all the same, unless negatives are drawn for it."""
    train = manifest.splits.get(TRAIN)
    if train is None or config.allow_degenerate or config.negatives.per_positive is not None:
        return
    if train.label_rate in (0.0, 1.0):
        raise UserError(
            f"{root}: every label of train is {train.label_rate:.0f}, so no model can learn from it; correct the "
            "column or the rule of the labels and make it again, or give data.allow_degenerate=true"
        )


def require_task(config: AppConfig, root: Path, manifest: Manifest) -> None:
    """Refuse keys that do not apply to the dataset's kind of labels, or to its sample weights."""
    negatives, evaluation = config.data.negatives, config.eval
    for key, column in (
        ("eval.group_by", evaluation.group_by),
        ("data.negatives.user", negatives.user),
        ("data.negatives.item", negatives.item),
    ):
        if column is not None:
            require_column(key, column, config.data, root, manifest)
    # Keys with their values, and the values without effect.
    values: dict[str, tuple[object, object]] = {
        **{f"data.negatives.{name}": (value, None) for name, value in vars(negatives).items()},
        "eval.group_by": (evaluation.group_by, None),
        "eval.keep_scores": (evaluation.keep_scores, 0),
    }
    if manifest.weight and (remedies := _remedies(values)):
        raise UserError(
            f"{', '.join(remedies)}: not of rows with sample weights, which {root} has (column {manifest.weight}); "
            f"give {' '.join(remedies.values())}"
        )
    task, monitor, remedies = task_of(manifest), config.train.monitor, {}
    if config.loss.name not in task.losses:
        remedies[f"loss={config.loss.name}"] = f"loss={task.losses[0]}"
    if any(METRICS[name].task != task.labels for name in metrics_of(monitor)):
        remedies[f"train.monitor={shown(monitor)}"] = f"train.monitor={task.main}"
    if not task.has_clicks:
        values |= {
            "loss.threshold": (config.loss.threshold, 0.0),
            "train.target_auc": (config.train.target_auc, None),
            "train.target_accuracy": (config.train.target_accuracy, None),
            **{kind.key: (True, False) for kind in configured_trackers(config) if kind.of_clicks},
            "baselines": (config.baselines is True, False),
        }
        remedies |= _remedies(values)
    if remedies:
        label, kind = manifest.schema["label"], "clicks, 0 or 1" if task.has_clicks else "numbers"
        raise UserError(
            f"{', '.join(remedies)}: not of the labels of {root}, which are {kind} (column {label}); give "
            f"{' '.join(remedies.values())}"
        )


def _remedies(values: Mapping[str, tuple[object, object]]) -> dict[str, str]:
    """Return, by each setting `key=value` that has an effect, the setting to give in its place.

    values: by key, the value given and the value without effect.
    """
    differing = {key: pair for key, pair in values.items() if pair[0] != pair[1]}
    return {f"{key}={shown(value)}": f"{key}={shown(without)}" for key, (value, without) in differing.items()}


# Begins a micro-batch: takes its first row in the global batch and its number of valid rows.
Draw = Callable[[int, int], None]


# Level, number, and the sum of micro-batches [number * 2**level, (number + 1) * 2**level), a tensor for each parameter.
Node: TypeAlias = tuple[int, int, list[Tensor]]


class TreeSum:
    """Adds tensors of consecutive micro-batches by a binary tree over their numbers.

    The bits of the sum do not depend on which process adds which part of the tree.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, level: int, number: int, tensors: list[Tensor]) -> None:
        """Add the next node; nodes come in the order of their micro-batches."""
        # Pairs are added as soon as they are complete, so that at most one node of each level takes memory.
        while self.nodes and self.nodes[-1][0] == level and number % 2:
            left = self.nodes.pop()[2]
            if tensors:
                torch._foreach_add_(left, tensors)
            level, number, tensors = level + 1, number // 2, left
        self.nodes.append((level, number, tensors))

    def total(self) -> list[Tensor]:
        """Return the sum, and leave the tree empty; micro-batches missing on the right of the tree add nothing."""
        tensors = self.nodes.pop()[2]
        while self.nodes:
            left = self.nodes.pop()[2]
            torch._foreach_add_(left, tensors)
            tensors = left
        return tensors


class MicroBatches:
    """Training steps of a DLRM on this process's micro-batches of each global batch."""

    def __init__(self, model: nn.Module, size: int, runtime: Runtime) -> None:
        """model: sharded, its dense layers on each process; size: M."""
        self._dlrm = cast(DLRM, model.module)
        self._size, self._runtime = size, runtime
        dense = {name: parameter for name, parameter in model.named_parameters() if not table_of(name)}
        self.parameters = [dense[name] for name in sorted(dense)]
        self._norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        for norm in self._norms:
            norm.of_micro_batch = True
        self._replicated = [
            ReplicatedLookup(kernel, runtime)
            for collection in model.modules()
            if isinstance(collection, ShardedEmbeddingBagCollection)
            for lookup in collection._lookups  # modules() leaves them out
            for kernel in lookup._emb_modules
            if isinstance(kernel, BatchedDenseEmbeddingBag)
        ]
        # Of each micro-batch: logits [M], the vectors that they are computed from, its number of valid rows, and [2, C]
        # of each batch norm: mean and unbiased variance of these rows.
        self._graphs: list[tuple[Tensor, Tensor, int, list[Tensor]]] = []
        self._losses: list[Tensor | None] = []  # parts of the loss, with their graphs; None for padding alone
        self._count = 0  # number of micro-batches in the global batch
        self._vectors: Tensor | None = None  # of this process's batch, with the graph of their lookup
        self.losses = torch.empty(0)  # as `_losses`, without graphs, 0 for padding alone

    def forward(self, batch: Batch, draw: Draw) -> Tensor:
        """Return the logits [B], detached; the graph stays in this object. `draw` begins each micro-batch."""
        vectors, order = self._dlrm.sparse_arch(batch.sparse_features)()
        first_row, self._graphs, self._vectors = self._runtime.rank * len(batch.labels), [], vectors
        logits = []
        for start in range(0, len(batch.labels), self._size):
            rows = slice(start, start + self._size)
            num_valid = min(max(batch.num_valid - start, 0), self._size)
            draw(first_row + start, num_valid)
            # A leaf cuts the graph: the dense layers' backward runs per micro-batch, the tables' once for them all.
            leaf = vectors[rows].detach().requires_grad_(torch.is_grad_enabled())
            scores = self._dlrm.logits_of_vectors(batch.dense_features[rows], leaf, order)
            self._graphs.append((scores, leaf, num_valid, [norm.statistics for norm in self._norms]))
            logits.append(scores.detach())
        return torch.cat(logits)

    def loss(self, loss: Loss, batch: Batch) -> Tensor:
        """Return this process's part of the global batch's mean loss; `losses` holds each micro-batch's part."""
        parts: list[Tensor | None] = []
        for number, (logits, _, num_valid, statistics) in enumerate(self._graphs):
            rows, share = slice(number * self._size, number * self._size + num_valid), num_valid / batch.num_global
            # A micro-batch of padding has no loss, since the mean over no rows is NaN.
            parts.append(loss(logits[:num_valid], *batch.targets(rows)) * share if num_valid else None)
            # Weighted by their rows, statistics add up to the mean over the global batch, in the same tree.
            if statistics:
                torch._foreach_mul_(statistics, share)
        zero = torch.zeros((), device=batch.labels.device)
        self._losses, self._count = parts, -(-batch.num_global // self._size)
        self.losses = torch.stack([zero if part is None else part.detach() for part in parts])
        return self.losses.sum()

    def backward(self) -> None:
        """Set the gradients of dense parameters and replicated tables to the global batch's; update sharded tables."""
        tree, first_number = TreeSum(), self._runtime.rank * len(self._graphs)
        vector_gradients = []
        for offset, ((_, leaf, _, batch_statistics), part) in enumerate(zip(self._graphs, self._losses, strict=True)):
            if part is None:
                # The backward of the lookup needs a gradient for every row, also for padding.
                vector_gradients.append(torch.zeros_like(leaf))
                continue
            leaf_gradient, *gradients = torch.autograd.grad(
                part, [leaf, *self.parameters], allow_unused=True, materialize_grads=True
            )
            vector_gradients.append(leaf_gradient)
            tree.add(0, first_number + offset, [*gradients, *batch_statistics])
        vectors, self._graphs, self._vectors = self._vectors, [], None
        assert vectors is not None, "forward comes first"
        # One backward serves all micro-batches: FBGEMM then adds a row's gradients in the order of the global batch.
        vectors.backward(torch.cat(vector_gradients))
        total = self._sum_over_processes(tree)
        # Gradients come first in the total, and statistics of batch norms follow them.
        for parameter, gradient in zip(self.parameters, total, strict=False):
            parameter.grad = gradient
        for norm, statistics in zip(self._norms, total[len(self.parameters) :], strict=True):
            norm.update(statistics)
        for lookup in self._replicated:
            lookup.set_gradients()

    def _sum_over_processes(self, tree: TreeSum) -> list[Tensor]:
        """Return the sum over all processes: gradients of the parameters, then statistics [2, C] of each batch norm.

        tree: the sum over this process's micro-batches. Each process adds everybody's nodes in the order of the batch.
        """
        if self._runtime.world_size == 1:
            return tree.total()
        per_process = len(self._losses)
        cuts = [min(rank * per_process, self._count) for rank in range(self._runtime.world_size + 1)]
        # Each process computes the level and number of all others' nodes, so that only the nodes' values are sent.
        trees = [TreeSum() for _ in range(self._runtime.world_size)]
        for (first, stop), other in zip(pairwise(cuts), trees, strict=True):
            for number in range(first, stop):
                other.add(0, number, [])
        nodes_by_rank = [other.nodes for other in trees]
        # The shapes come from the parameters, as a process with nothing but padding has no nodes.
        shapes = [parameter.shape for parameter in self.parameters] + [(2, len(norm.bias)) for norm in self._norms]
        sizes = [math.prod(shape) for shape in shapes]
        rows = [torch.cat([tensor.flatten() for tensor in tensors]) for _, _, tensors in tree.nodes]
        # All processes must send equal shapes: those with fewer nodes add rows of zeros, which nobody reads.
        local = torch.zeros(max(map(len, nodes_by_rank)), sum(sizes), device=self._runtime.device)
        if rows:
            local[: len(rows)] = torch.stack(rows)
        gathered = [torch.empty_like(local) for _ in nodes_by_rank]
        # The nodes are exchanged, not reduced: the order of an all_reduce depends on the number of processes.
        dist.all_gather(gathered, local)
        global_tree = TreeSum()
        for nodes, values in zip(nodes_by_rank, gathered, strict=True):
            for (level, number, _), row in zip(nodes, values, strict=False):
                global_tree.add(level, number, [row])
        (total,) = global_tree.total()
        return [part.view(shape) for part, shape in zip(total.split(sizes), shapes, strict=True)]


class ReplicatedLookup:
    """Data-parallel tables, whose gradients are added in the order of the global batch.

    Each process receives everybody's ids and the gradients of their vectors, and so computes the gradient of all. That
    is by torch's own backward of embeddings, which adds them up per row in an order that does not depend on threads.
    """

    def __init__(self, kernel: BatchedDenseEmbeddingBag, runtime: Runtime) -> None:
        self._kernel, self._runtime = kernel, runtime
        self._features: KeyedJaggedTensor | None = None
        self._gradient = torch.empty(0)
        kernel.register_forward_hook(self._note_lookup)

    def _note_lookup(self, kernel: nn.Module, inputs: tuple[KeyedJaggedTensor], vectors: Tensor) -> None:
        """Keep the ids of a forward in training; `_keep_gradient` will keep its vectors' gradient. A forward hook."""
        if vectors.requires_grad:
            self._features = inputs[0]
            vectors.register_hook(self._keep_gradient)

    def _keep_gradient(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def set_gradients(self) -> None:
        """Replace the tables' gradients by those of the global batch; a collective call after the backward."""
        assert self._features is not None, "forward comes first"
        config, column, table_gradients = self._kernel.config, 0, []
        for table in config.embedding_tables:
            ids, id_gradients = [], []  # [ids of the global batch], [the same, columns]
            for name in table.feature_names:
                gradient = self._gradient[:, column : column + table.local_cols]
                column += table.local_cols
                feature = self._features[name]
                lengths = feature.lengths()
                # The gradient is that of the bag's mean, of which each id has an equal part.
                if config.pooling is PoolingType.MEAN:
                    gradient = gradient / lengths.clamp(min=1).unsqueeze(1)
                ids.append(self._runtime.join(feature.values()))
                id_gradients.append(self._runtime.join(gradient.repeat_interleave(lengths, dim=0)))
            # A padding_idx of -1 means none, since row 0 is a row like any other.
            summed = torch.ops.aten.embedding_dense_backward(
                torch.cat(id_gradients), torch.cat(ids), table.local_rows, padding_idx=-1, scale_grad_by_freq=False
            )
            table_gradients.append(summed.flatten())
        self._kernel.emb_module.weights.grad = torch.cat(table_gradients)


# Returns whether to stop an evaluation, by the number of batches that this process has scored.
Interrupted = Callable[[int], bool]


class Scores(NamedTuple):
    """Logits and labels of samples, [n] float32, and the further inputs of group metrics.

    groups: ids [n] int32 of the model's group_feature, or of eval.group_by; empty without either. rows:
        `Batch.row_keys`, with eval.group_by only.
    tasks: logits and labels of each further label that the model learns.
    weights: sample weights [n] float32; None if the dataset has none.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    groups: NDArray[np.int32]
    rows: NDArray[np.int64]
    tasks: list[tuple[NDArray[np.float32], NDArray[np.float32]]]
    weights: NDArray[np.float32] | None = None


class Evaluation(NamedTuple):
    """A split's metrics, with its name and number of samples, the same on all processes.

    logits, labels: [n] float32 on rank 0 in the order of the split's rows, empty elsewhere; a sample of them if the AUC
        is from a histogram; empty if labels are numbers.
    """

    figures: EvaluationFigures
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]


class EvaluationInterrupted(Exception):
    """Raised when the run is asked to stop during an evaluation, which a resumed run begins again."""


@dataclass
class Predictor:
    """A model, sharded or not, that scores a dataset's rows on this process's device."""

    config: AppConfig
    runtime: Runtime
    root: Path  # the dataset's directory
    manifest: Manifest
    model: Any  # DistributedModelParallel, or a DLRM that each process holds whole
    _splits: dict[str, Split] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.config.model.mixes_samples:
            log.warning(
                "model.mixes_samples=true: a sample's logit depends on the other rows of its batch, so every "
                "metric depends on eval.global_batch_size (%d) and on the number of processes (%d)",
                self.config.eval.global_batch_size,
                self.runtime.world_size,
            )

    def split(self, name: str) -> Split:
        """Return a split of the dataset as this process reads it; a later call returns the same object."""
        if name not in self._splits:
            self._splits[name] = self._open_split(name, self.runtime.rank, self.runtime.world_size)
        return self._splits[name]

    @cached_property
    def _open_split(self) -> Callable[[str, int, int], Split]:
        """Function of a split's name, of a rank and of the number of processes."""
        root, manifest, data, train = self.root, self.manifest, self.config.data, self.config.train
        if (parts := self.config.model.parts) is not None:
            return parts.open_splits(root, manifest, self.config).split
        return lambda name, rank, world_size: SplitReader(
            root, manifest, name, data, rank, world_size, train.drop_last, train.micro_batch
        )

    @cached_property
    def micro_batches(self) -> MicroBatches | None:
        """Arithmetic of train.deterministic=layout; None otherwise, and where each process has the whole model."""
        size = self.config.train.micro_batch
        if size is None or not isinstance(self.model, DistributedModelParallel):
            return None
        return MicroBatches(self.model, size, self.runtime)

    def samples(self, steps: int) -> int:
        """Return the number of samples of all processes in the run's first steps."""
        # With drop_last all batches are whole, so the rows do not matter, and the split need not be opened.
        train = self.config.train
        return samples_of(train, 0 if train.drop_last else self.split("train").rows, steps)

    def split_rows(self) -> dict[str, int]:
        """Return the rows of each split; for a dataset of events, its samples."""
        windows = {name: self.split(name).rows for name in self.manifest.kind.windows}
        return windows or {name: split.rows for name, split in self.manifest.splits.items()}

    def on_device(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches on this process's device; a GPU gets each while the one before is computed."""
        device = self.runtime.device
        return batches if device.type == "cpu" else copied_ahead(batches, device)

    def autocast(self, cached: bool = True) -> torch.autocast:
        """Return a context with the dense layers' precision. cached: cast each weight once, not at every use."""
        bf16 = self.config.runtime.precision == "bf16"
        return torch.autocast(self.runtime.device.type, torch.bfloat16, bf16, cached)

    def draw(self, first_row: int, num_valid: int) -> None:
        """Draw what a micro-batch needs in training: nothing here."""

    def forward(self, batch: Batch) -> Tensor:
        """Return logits on the device: float32, shaped as the labels; dense layers use the configured precision."""
        with self.autocast():
            if self.micro_batches is not None:
                return self.micro_batches.forward(batch, self.draw)
            logits: Tensor = self.model(*batch.inputs)
            return logits.flatten() if batch.labels.ndim == 1 else logits

    def score(self, batches: Iterator[Batch], interrupted: Interrupted = lambda batches_done: False) -> Scores:
        """Return the scores of these batches' valid samples, on the CPU.

        Raises EvaluationInterrupted: `interrupted`, called with the number of batches done, returned true.
        """
        was_training = self.model.training
        self.model.eval()
        # A split may have no rows, so each list begins with an empty part.
        logits, labels, groups = [torch.empty(0)], [torch.empty(0)], [torch.empty(0, dtype=torch.int32)]
        rows, weights = [np.empty(0, np.int64)], [torch.empty(0)]
        column = self.config.model.kind.group_feature or self.config.eval.group_by
        try:
            with torch.no_grad():
                for number, batch in enumerate(self.on_device(batches)):
                    if interrupted(number):
                        raise EvaluationInterrupted
                    # Scores leave the device batch by batch, so that its memory does not grow with the split.
                    logits.append(self.forward(batch)[: batch.num_valid].cpu())
                    labels.append(batch.labels[: batch.num_valid].cpu())
                    if batch.weights is not None:
                        weights.append(batch.weights[: batch.num_valid].cpu())
                    if column is not None:
                        groups.append(batch.sparse_features[column].values()[: batch.num_valid].cpu())
                    if self.config.eval.group_by is not None:
                        rows.append(batch.row_keys()[: batch.num_valid])
        finally:
            self.model.train(was_training)
        scores, truth, ids = (torch.cat(parts).numpy() for parts in (logits, labels, groups))
        if scores.ndim == 1:
            row_weights = torch.cat(weights).numpy() if self.manifest.weight else None
            return Scores(scores, truth, ids, np.concatenate(rows), [], row_weights)
        # The dataset's own label comes first, the further tasks follow.
        tasks = [*zip(scores.T[1:], truth.T[1:], strict=True)]
        return Scores(scores[:, 0], truth[:, 0], ids, np.concatenate(rows), tasks)

    def eval_batch_size(self, rows: int) -> int:
        """Return the samples of an evaluation step over all processes, for a split with this many rows."""
        # A batch larger than the split would compute on padding alone.
        samples = min(self.config.eval.global_batch_size, rows)
        processes = self.runtime.world_size
        return part_size(max(1, samples), processes, self.config.train.micro_batch) * processes

    def evaluate(
        self,
        name: str,
        interrupted: Interrupted = lambda batches_done: False,
        corrected: bool = False,
        rows: EvaluatedSplit | None = None,
    ) -> Evaluation:
        """Return the metrics of a whole split, all processes' samples pooled; a collective call.

        rows: rows to evaluate under that name in place of a split of the dataset; sampling left none of
            them out.
        corrected: take metrics of probabilities that are corrected for sampling and loss.class_weights, over all
            rows; logits stay as they are.

        Raises as `score`, and UserError for logits that are not finite.

        Rank 0 alone collects and sorts the scores; above eval.exact_rows, processes add up histograms instead.
        """
        split, runtime = rows or self.split(name), self.runtime
        batches = split.eval_batches(self.eval_batch_size(split.rows))
        logits, labels, groups, row_keys, tasks, weights = self.score(batches, interrupted)
        # NaN must be found before the metrics, since sorting would silently put it at one end of the ranking.
        self._require_finite([logits, *(scores for scores, _ in tasks)], split.rows, name)
        join = partial(self._join_in_row_order, rows=split.rows)

        def to_sum() -> list[NDArray[np.float32]]:
            """Return logits, labels and any weights of this process's rows; with layout, of all rows on rank 0."""
            arrays = [values for values in (logits, labels, weights) if values is not None]
            return arrays if self.micro_batches is None else [join(values) for values in arrays]

        def document(metrics: Mapping[str, object]) -> EvaluationFigures:
            return convert({"split": name, "samples": split.rows, **metrics}, EvaluationFigures)

        # Errors of predicted numbers are sums, so no process needs the scores of all rows.
        if not task_of(self.manifest).has_clicks:
            preds, truth, *row_weights = to_sum()
            figures = document(number_metrics(preds, truth, self._sum_of_sums, *row_weights))
            return Evaluation(figures, logits[:0], labels[:0])
        kept, class_weights, sums_of_all = kept_share(self.manifest), self.config.loss.class_weights, np.empty(0)
        if rows is not None:  # sampling left none of them out
            logits, kept = logits + np.float32(logit_correction(kept, class_weights) if corrected else 0), 1.0
        elif kept and (kept != 1 or class_weights):
            sums_of_all = self._sum_of_sums(all_rows_sums(*to_sum(), kept=kept, class_weights=class_weights))
        if split.rows > self.config.eval.exact_rows:
            summed = to_sum()
            sums = self._sum_of_sums(click_sums(*summed))
            if weights is None:
                binned = histogram_metrics(runtime.total(score_counts(logits, labels)), sums)
            else:
                binned = histogram_metrics(self._sum_of_sums(score_counts(*summed)), sums)
            binned = of_all_rows(binned, sums_of_all, corrected) if len(sums_of_all) else binned
            # Curves and histograms need only a sample of this many rows, evenly spaced.
            stride = -(-split.rows // MAX_SAMPLES)
            logits, labels = summed[0][::stride], summed[1][::stride]
            # With train.deterministic=layout rank 0 has the scores of all processes already.
            if self.micro_batches is None:
                logits, labels = runtime.to_rank_0(logits), runtime.to_rank_0(labels)
            return Evaluation(document(binned), logits, labels)
        logits, labels, groups, row_keys = join(logits), join(labels), join(groups), join(row_keys)
        weights = None if weights is None else join(weights)
        joined_tasks = [(join(scores), join(truth)) for scores, truth in tasks]

        def metrics_on_rank_0() -> EvaluationFigures:
            grouped: dict[str, float | int | None] = {}
            parts, names = self.config.model.parts, list[str]()
            if self.config.eval.group_by is not None:
                grouped = group_metrics(logits, labels, groups, row_keys)
            elif parts is not None:
                grouped, names = {**parts.group_metrics(logits, labels, groups)}, parts.tasks(self.config)
            kept_figures = click_metrics(logits, labels, 1 / kept if corrected else 1.0, weights)
            figures = of_all_rows(kept_figures, sums_of_all, corrected) if len(sums_of_all) else kept_figures
            aucs = {f"auc_{name}": click_metrics(*task)["auc"] for name, task in zip(names, joined_tasks, strict=False)}
            return document({**figures, **grouped, **aucs})

        return Evaluation(runtime.on_rank_0(metrics_on_rank_0), logits, labels)

    def _join_in_row_order(self, values: NDArray[ScalarT], rows: int) -> NDArray[ScalarT]:
        """Return all processes' values of a split on rank 0, in the order of its rows; empty elsewhere."""
        joined = self.runtime.to_rank_0(values)
        # Samples of a log of events have no order on disk, so they stay in the order of the processes.
        if not len(joined) or self.runtime.world_size == 1 or self.manifest.kind.windows:
            return joined
        # Metrics are sums of floats, whose bits depend on the order: rows return to the order on disk.
        return joined[places_of_rows(rows, self.eval_batch_size(rows), self.runtime.world_size)]

    def _sum_of_sums(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of the processes' sums, on all of them; with layout, rank 0's, which is of all rows."""
        by_rank = self.runtime.gather(sums)
        # Rank 0 has added all rows in their order (`to_sum`), and the others none.
        return by_rank[0] if self.micro_batches is not None else np.sum(by_rank, axis=0)

    def _require_finite(self, scores: list[NDArray[np.float32]], rows: int, name: str) -> None:
        """Raise UserError on all processes if any of them has logits that are not finite."""
        is_bad = np.logical_or.reduce([~np.isfinite(logits) for logits in scores])
        if count := int(self.runtime.total(np.array([np.count_nonzero(is_bad)]))[0]):
            raise UserError(
                f"split {name}: {count:,} of {rows:,} logits are not finite, and no metric is defined for "
                "them: lower optimizer.lr and train again, or choose an earlier checkpoint"
            )


def load(checkpoint: Path, config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest) -> Predictor:
    """Return a checkpoint's model, sharded as configured, without an optimizer or its state; a collective call.

    Raises UserError: the checkpoint or the dataset does not fit the configuration.
    """
    # FBGEMM's lookup on CPUs needs an optimizer, and this one keeps no state.
    without_state = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.0, "stochastic_rounding": False}
    model, _ = sharded_model(config, runtime, root, manifest, without_state, initial=False)
    load_tensors(checkpoint, model, optimizer=None)
    return Predictor(config, runtime, root, manifest, model)


def places_of_rows(rows: int, batch_size: int, world_size: int) -> NDArray[np.int64]:
    """Return the place of each row of a split [rows] among joined scores.

    The scores of one process follow those of another, and each process scores an equal part of each batch, of
    batch_size rows over all processes.
    """
    numbers, local_size = np.arange(rows), batch_size // world_size
    batches, last_rows = divmod(rows, batch_size)
    last_parts = np.clip(last_rows - local_size * np.arange(world_size), 0, local_size)
    starts = np.cumsum([0, *(batches * local_size + last_parts)])
    batch, place = np.divmod(numbers, batch_size)
    rank, local_place = np.divmod(place, local_size)
    places: NDArray[np.int64] = starts[rank] + batch * local_size + local_place
    return places
