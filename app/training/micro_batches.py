"""The arithmetic of train.deterministic=layout: a step's bits do not depend on the numbers of processes and threads.

A sum of floats depends on its order, and a product of matrices on their shapes. Here both are fixed. The rows of the
global batch form micro-batches of train.micro_batch_size rows; forward and backward of the dense layers run on one
micro-batch at a time, whichever process has it, and gradients of the micro-batches are added by a binary tree over
their numbers. Batch norm computes its statistics per micro-batch, and the running statistics move towards their mean.
Tables need no micro-batches: FBGEMM adds the gradients of a row in the order of the global batch.

Shapes: B samples of this process, M of a micro-batch, F sparse features, D embedding_dim.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.modules.embedding_configs import PoolingType

from app.data.batch import Batch
from app.model.batch_norm import BatchNorm
from app.model.dlrm import DLRM
from app.model.losses import Loss
from app.model.tables import table_of
from app.runtime.platform import Runtime

# Begins a micro-batch: takes its first row in the global batch and its number of valid rows.
Draw = Callable[[int, int], None]


class Node(NamedTuple):
    """The sum of micro-batches [number * 2**level, (number + 1) * 2**level), with a tensor for each parameter."""

    level: int
    number: int
    tensors: list[Tensor]


class TreeSum:
    """Adds tensors of consecutive micro-batches by a binary tree over their numbers.

    The bits of the sum do not depend on which process adds which part of the tree.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Add the next node; nodes come in the order of their micro-batches."""
        while self.nodes and self.nodes[-1].level == node.level and node.number % 2:
            left = self.nodes.pop()
            if node.tensors:
                torch._foreach_add_(left.tensors, node.tensors)
            node = Node(node.level + 1, node.number // 2, left.tensors)
        self.nodes.append(node)

    def total(self) -> list[Tensor]:
        """Return the sum; micro-batches missing on the right of the tree add nothing."""
        tensors = self.nodes.pop().tensors
        while self.nodes:
            left = self.nodes.pop().tensors
            torch._foreach_add_(left, tensors)
            tensors = left
        return tensors


def nodes_of(first: int, stop: int) -> list[tuple[int, int]]:
    """Return level and number of each node of a tree sum of micro-batches [first, stop)."""
    tree = TreeSum()
    for number in range(first, stop):
        tree.add(Node(0, number, []))
    return [(node.level, node.number) for node in tree.nodes]


class MicroBatch(NamedTuple):
    """The graph of a micro-batch: logits [M], the vectors that they are computed from, and its number of valid rows.

    statistics: [2, C] of each batch norm.
    """

    logits: Tensor
    vectors: Tensor
    num_valid: int
    statistics: list[Tensor]


class MicroBatches:
    """Training steps of a DLRM on this process's micro-batches of each global batch."""

    def __init__(self, model: nn.Module, size: int, runtime: Runtime) -> None:
        """model: sharded, its dense layers on each process; size: M."""
        self._dlrm = cast(DLRM, model.module)
        self._size, self._runtime = size, runtime
        dense = sorted((name, each) for name, each in model.named_parameters() if not table_of(name))
        self.parameters = [parameter for _, parameter in dense]
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
        self._graphs: list[MicroBatch] = []
        self._losses: list[Tensor | None] = []
        self._count = 0  # number of micro-batches in the global batch
        self._vectors: Tensor | None = None
        self.losses = torch.empty(0)

    def forward(self, batch: Batch, draw: Draw) -> Tensor:
        """Return the logits [B], detached; the graph stays in this object. `draw` begins each micro-batch."""
        vectors, order = self._dlrm.sparse_arch(batch.sparse_features)()
        first, self._graphs, self._vectors = self._runtime.rank * len(batch.labels), [], vectors
        logits = []
        for start in range(0, len(batch.labels), self._size):
            rows = slice(start, start + self._size)
            num_valid = min(max(batch.num_valid - start, 0), self._size)
            draw(first + start, num_valid)
            # A leaf cuts the graph: the dense layers' backward runs per micro-batch, the tables' once for them all.
            leaf = vectors[rows].detach().requires_grad_(torch.is_grad_enabled())
            scores = self._dlrm.score(batch.dense_features[rows], leaf, order)
            self._graphs.append(MicroBatch(scores, leaf, num_valid, [norm.statistics for norm in self._norms]))
            logits.append(scores.detach())
        return torch.cat(logits)

    def loss(self, loss: Loss, batch: Batch) -> Tensor:
        """Return this process's part of the global batch's mean loss; `losses` holds each micro-batch's part."""
        parts: list[Tensor | None] = []
        for number, graph in enumerate(self._graphs):
            rows = slice(number * self._size, number * self._size + graph.num_valid)
            share = graph.num_valid / batch.num_global
            logits = graph.logits[: graph.num_valid]
            parts.append(loss(logits, *batch.targets(rows)) * share if graph.num_valid else None)
            if graph.statistics:
                torch._foreach_mul_(graph.statistics, share)
        zero = torch.zeros((), device=batch.labels.device)
        self._losses, self._count = parts, -(-batch.num_global // self._size)
        self.losses = torch.stack([zero if part is None else part.detach() for part in parts])
        return self.losses.sum()

    def backward(self) -> None:
        """Set the gradients of dense parameters and replicated tables to the global batch's; update sharded tables."""
        tree, first = TreeSum(), self._runtime.rank * len(self._graphs)
        of_vectors = []
        for offset, (graph, part) in enumerate(zip(self._graphs, self._losses, strict=True)):
            if part is None:
                of_vectors.append(torch.zeros_like(graph.vectors))
                continue
            of_leaf, *gradients = torch.autograd.grad(
                part, [graph.vectors, *self.parameters], allow_unused=True, materialize_grads=True
            )
            of_vectors.append(of_leaf)
            tree.add(Node(0, first + offset, [*gradients, *graph.statistics]))
        vectors, self._graphs, self._vectors = self._vectors, [], None
        assert vectors is not None, "forward comes first"
        vectors.backward(torch.cat(of_vectors))
        total = self._exchanged(tree)
        for parameter, gradient in zip(self.parameters, total, strict=False):
            parameter.grad = gradient
        for norm, statistics in zip(self._norms, total[len(self.parameters) :], strict=True):
            norm.update(statistics)
        for lookup in self._replicated:
            lookup.set_gradients()

    def _exchanged(self, tree: TreeSum) -> list[Tensor]:
        """Return the sum over all processes; each adds everybody's nodes in the order of their micro-batches."""
        if self._runtime.world_size == 1:
            return tree.total()
        of_each = len(self._losses)
        cuts = [min(rank * of_each, self._count) for rank in range(self._runtime.world_size + 1)]
        of_ranks = [nodes_of(first, stop) for first, stop in pairwise(cuts)]
        shapes = [parameter.shape for parameter in self.parameters] + [(2, len(norm.bias)) for norm in self._norms]
        sizes = [math.prod(shape) for shape in shapes]
        most = max(map(len, of_ranks))
        rows = [torch.cat([each.flatten() for each in node.tensors]) for node in tree.nodes]
        local = torch.zeros(most, sum(sizes), device=self._runtime.device)
        if rows:
            local[: len(rows)] = torch.stack(rows)
        gathered = [torch.empty_like(local) for _ in of_ranks]
        dist.all_gather(gathered, local)
        whole = TreeSum()
        for nodes, values in zip(of_ranks, gathered, strict=True):
            for (level, number), row in zip(nodes, values, strict=False):
                whole.add(Node(level, number, [row]))
        (total,) = whole.total()
        return [part.view(shape) for part, shape in zip(total.split(sizes), shapes, strict=True)]


class ReplicatedLookup:
    """Data-parallel tables, whose gradients are added in the order of the global batch.

    Each process receives everybody's ids and the gradients of their vectors. torch's own backward of embeddings adds
    them up per row, in an order that does not depend on threads.
    """

    def __init__(self, kernel: BatchedDenseEmbeddingBag, runtime: Runtime) -> None:
        self._kernel, self._runtime = kernel, runtime
        self._features: KeyedJaggedTensor | None = None
        self._gradient = torch.empty(0)
        kernel.register_forward_hook(self._note)

    def _note(self, kernel: nn.Module, inputs: tuple[KeyedJaggedTensor], vectors: Tensor) -> None:
        if vectors.requires_grad:
            self._features = inputs[0]
            vectors.register_hook(self._keep)

    def _keep(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def set_gradients(self) -> None:
        """Replace the tables' gradients by those of the global batch; a collective call after the backward."""
        assert self._features is not None, "forward comes first"
        config, column, of_tables = self._kernel.config, 0, []
        for table in config.embedding_tables:
            ids, rows = [], []
            for name in table.feature_names:
                gradient = self._gradient[:, column : column + table.local_cols]
                column += table.local_cols
                feature = self._features[name]
                lengths = feature.lengths()
                if config.pooling is PoolingType.MEAN:
                    gradient = gradient / lengths.clamp(min=1).unsqueeze(1)
                ids.append(self._runtime.join(feature.values()))
                rows.append(self._runtime.join(gradient.repeat_interleave(lengths, dim=0)))
            summed = torch.ops.aten.embedding_dense_backward(
                torch.cat(rows), torch.cat(ids), table.local_rows, padding_idx=-1, scale_grad_by_freq=False
            )
            of_tables.append(summed.flatten())
        self._kernel.emb_module.weights.grad = torch.cat(of_tables)
