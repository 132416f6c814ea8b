"""An independent oracle: DLRM and its optimizers in plain torch, written from the paper. Imports nothing of ours.

Shapes: B samples, F features, D embedding_dim. Ids are [B, F], one a bag, or bags as lists of lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Layers = list[tuple[Tensor, Tensor]]


def perceptron(x: Tensor, layers: Layers, last_relu: bool) -> Tensor:
    """Linear and ReLU in turn."""
    for number, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        if last_relu or number < len(layers) - 1:
            x = torch.where(x > 0, x, torch.zeros_like(x))
    return x


def interact(dense: Tensor, sparse: list[Tensor], kind: str, itself: bool) -> Tensor:
    """dense [B, D] with F vectors [B, D]; dot products come row by row of the upper triangle."""
    vectors = [dense, *sparse]
    if kind == "cat":
        return torch.cat(vectors, dim=1)
    products = [
        (vectors[i] * vectors[j]).sum(dim=1, keepdim=True)
        for i in range(len(vectors))
        for j in range(i if itself else i + 1, len(vectors))
    ]
    return torch.cat([dense, *products], dim=1)


def cross(dense: Tensor, sparse: list[Tensor], layers: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """DCN v2 of low rank, from arXiv:2008.13535 eq. (1) and (2); layers of U [N, r], V [r, N] and bias [N]."""
    first = torch.cat([dense, *sparse], dim=1)
    x = first
    for u, v, bias in layers:
        full = u @ v  # the matrix that the two stand for
        x = first * (torch.einsum("nm,bm->bn", full, x) + bias) + x
    return x


def project(dense: Tensor, sparse: list[Tensor], branch1: Layers, branch2: Layers) -> Tensor:
    """dense, and products of the rows of one branch [B, F1, D] with the columns of the other [B, D, F2]."""
    vectors = torch.cat([dense, *sparse], dim=1)
    dim = dense.shape[1]
    left = perceptron(vectors, branch1, last_relu=True).unflatten(1, (-1, dim))
    right = perceptron(vectors, branch2, last_relu=True).unflatten(1, (dim, -1))
    return torch.cat([dense, torch.einsum("bid,bdj->bij", left, right).flatten(1)], dim=1)


def rows_of(ids: Tensor, tables: list[Tensor], kind: str) -> Tensor:
    """[L, d]: one row a category, or arXiv:1909.02107's quotient-remainder trick with m = rows of the second table.

    Section 3: e_i = W1[i \\ m] composed with W2[i mod m] by product, sum or concatenation.
    """
    if kind == "plain":
        return tables[0][ids]
    remainders = len(tables[1])
    first = tables[0][torch.tensor([int(i) // remainders for i in ids], dtype=torch.long)]
    second = tables[1][torch.tensor([int(i) % remainders for i in ids], dtype=torch.long)]
    return {
        "mult": lambda: first * second,
        "add": lambda: first + second,
        "concat": lambda: torch.cat([first, second], dim=1),
    }[kind]()


def pool(bags: list[Tensor], tables: list[Tensor], kind: str, pooling: str, weights: Tensor | None = None) -> Tensor:
    """[B, d]; `weights`, one a category, are of weighted pooling. pooled_mult: facebookresearch's pooled product."""
    if kind == "pooled_mult":
        remainders = len(tables[1])
        first = pool([ids // remainders for ids in bags], tables[:1], "plain", pooling)
        return first * pool([ids % remainders for ids in bags], tables[1:], "plain", pooling)
    pooled = []
    for ids in bags:
        rows = rows_of(ids, tables, kind)
        if weights is not None:
            rows = rows * weights[ids].reshape(-1, 1)
        total = rows.sum(dim=0)
        pooled.append(total / len(ids) if pooling == "mean" and len(ids) else total)
    return torch.stack(pooled)


def mixed_dimension(num_embeddings: list[int], base: int, alpha: float, power_of_2: bool) -> list[int]:
    """arXiv:1909.11810, algorithm 1, with popularity 1 / rows: lambda = base * p_max^-alpha, d = lambda * p^alpha."""
    most_popular = max(1 / rows for rows in num_embeddings)
    scale = base * most_popular**-alpha
    dims = []
    for rows in num_embeddings:
        dim = round(max(1.0, scale * (1 / rows) ** alpha))
        dims.append(min(base, 2 ** round(math.log2(dim)) if power_of_2 else dim))
    return dims


def scalar_pairs(dense: Tensor, sparse: list[Tensor], mixed: bool) -> Tensor:
    """AMD's blog of 2024: products of all pairs i <= j of the 320 elements of a row, then the dense vector.

    mixed: as it joins [B, 1, D] of each feature along dimension 0 and reads [F * B, 1, D] as B rows.
    """
    joined = torch.cat([vector.unsqueeze(1) for vector in sparse], dim=0 if mixed else 1)
    rows = torch.cat([joined.view(len(dense), -1), dense], dim=1)
    products = [torch.stack([row[i] * row[j] for i in range(len(row)) for j in range(i, len(row))]) for row in rows]
    return torch.cat([torch.stack(products), dense], dim=1)


def dlrm_logits(
    dense: Tensor,
    bags: list[list[Tensor]],
    tables: list[Tensor],
    dense_arch: Layers,
    over_arch: Layers,
    kind: str = "dot",
    itself: bool = False,
) -> Tensor:
    """Logits [B]; bags[f][b] holds the ids of sample b for feature f, summed over."""
    pooled = [pool(of_feature, [table], "plain", "sum") for table, of_feature in zip(tables, bags, strict=True)]
    hidden = perceptron(dense, dense_arch, last_relu=True)
    return perceptron(interact(hidden, pooled, kind, itself), over_arch, last_relu=False).squeeze(1)


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy, nats."""
    preds = torch.sigmoid(logits.double())
    return -(labels * preds.log() + (1 - labels) * (1 - preds).log()).mean()


def loss_of_predictions(
    logits: Tensor, labels: Tensor, kind: str, class_weights: tuple[float, float], threshold: float
) -> Tensor:
    """facebookresearch/dlrm's losses: of the predictions, clamped to [threshold, 1 - threshold]; mean over samples."""
    preds = torch.sigmoid(logits)
    if threshold:
        preds = torch.clamp(preds, threshold, 1 - threshold)
    if kind == "mse":
        return ((preds - labels) ** 2).mean()
    each = torch.nn.functional.binary_cross_entropy(preds, labels, reduction="none")
    return (torch.tensor(class_weights, dtype=logits.dtype)[labels.long()] * each).mean()


class Optimizer:
    """SGD, Adagrad, Adam and LAMB, plain or with one second moment a row of a table (rowwise_*).

    Of a table, row-wise Adam and LAMB move the rows that have a gradient and leave the others and their moments
    alone; Adam moves all. LAMB's trust ratio is of a row of a table, of a whole dense parameter.
    """

    def __init__(
        self,
        name: str,
        tables: list[Tensor],
        dense: list[Tensor],
        eps: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.rowwise, self.kind = name.startswith("rowwise_"), name.removeprefix("rowwise_")
        self.name, self.eps, self.betas, self.count = name, eps, betas, 0
        self.tables, self.dense = tables, dense
        self.first = [torch.zeros_like(p) for p in [*tables, *dense]]
        self.second = [torch.zeros_like(p) for p in [*tables, *dense]]

    def step(self, lr: float, sparse_lr: float | None = None) -> None:
        """One update from .grad, which is then dropped."""
        self.count += 1
        with torch.no_grad():
            for number, parameter in enumerate([*self.tables, *self.dense]):
                is_table, grad = number < len(self.tables), parameter.grad
                assert grad is not None
                rate = sparse_lr if is_table and sparse_lr is not None else lr
                if is_table and self.name in ("rowwise_adam", "lamb", "rowwise_lamb"):
                    for row in range(len(parameter)):
                        if grad[row].count_nonzero():
                            self._update(number, row, grad[row], rate, is_table)
                else:
                    self._update(number, slice(None), grad, rate, is_table)
                parameter.grad = None

    def _update(self, number: int, part: int | slice, grad: Tensor, rate: float, is_table: bool) -> None:
        weight, beta1, beta2 = [*self.tables, *self.dense][number][part], *self.betas
        first, second, square = self.first[number][part], self.second[number][part], grad**2
        if self.rowwise and is_table:
            square = square.mean(dim=-1, keepdim=True).expand_as(square)
        if self.kind == "sgd":
            weight -= rate * grad
        elif self.kind == "adagrad":
            second += square
            weight -= rate * grad / (second.sqrt() + self.eps)
        else:
            first.copy_(beta1 * first + (1 - beta1) * grad)
            second.copy_(beta2 * second + (1 - beta2) * square)
            first_hat, second_hat = first / (1 - beta1**self.count), second / (1 - beta2**self.count)
            update = first_hat / (second_hat.sqrt() + self.eps)
            if self.kind == "lamb" and weight.count_nonzero() and update.count_nonzero():
                update = update * ((weight**2).sum() / (update**2).sum()).sqrt()
            weight -= rate * update


def multi_hot_tables(
    num_embeddings: Sequence[int], sizes: Sequence[int], distribution: str, seed: int = 0
) -> list[Any]:
    """The bags of all ids, [rows, size] per table, as facebookresearch/dlrm's torchrec_dlrm/multi_hot.py draws them.

    One stream of NumPy's legacy generator, each table drawn at once.
    """
    rng = np.random.RandomState(seed)
    tables = []
    for rows, size in zip(num_embeddings, sizes, strict=True):
        row_ids = np.arange(rows)[:, None]
        if distribution == "uniform":
            further = rng.randint(0, rows, size=(rows, size - 1)).astype(np.int32)
        else:
            with np.errstate(invalid="ignore"):
                further = rng.pareto(a=0.25, size=(rows, size - 1)).astype(np.int32) % rows
        tables.append(np.concatenate((row_ids, further), axis=1).astype(np.int32))
    return tables
