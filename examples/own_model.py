"""Train a model of your own on a dataset of Clickwork's: a factorization machine in plain torch.

    python examples/own_model.py DATASET [EPOCHS]

It prints the logloss of the test split after each epoch, and that of the base rate.
"""

import sys

import torch
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

import clickwork

DIM, BATCH_ROWS, RATE = 8, 256, 0.02


class FactorizationMachine(nn.Module):
    """Weights of all columns, and dot products of the vectors of each two sparse columns.

    Shapes: B rows, N dense columns, F sparse columns, D elements of a vector.
    """

    def __init__(self, num_dense: int, num_embeddings: dict[str, int]) -> None:
        super().__init__()
        self.linear = nn.Linear(num_dense, 1)
        self.tables = nn.ModuleDict(
            # A row's ids lie between two offsets; the last element is the weight of the column.
            {
                name: nn.EmbeddingBag(rows, DIM + 1, mode="sum", include_last_offset=True)
                for name, rows in num_embeddings.items()
            }
        )
        for table in self.tables.values():
            nn.init.normal_(table.get_parameter("weight"), std=0.01)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Logits [B] of dense [B, N] and the ids of F columns."""
        columns = [table(sparse[name].values(), sparse[name].offsets()) for name, table in self.tables.items()]
        vectors = torch.stack(columns, dim=1)  # [B, F, D + 1]
        weights, vectors = vectors[:, :, -1], vectors[:, :, :-1]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        return self.linear(dense).squeeze(1) + weights.sum(1) + pairs


def main(path: str, epochs: int) -> None:
    """Train on train, and print figures of test."""
    dataset = clickwork.Dataset(path)
    train, test = dataset.torch("train", BATCH_ROWS), dataset.torch("test", BATCH_ROWS)
    torch.manual_seed(0)
    model = FactorizationMachine(len(dataset.schema.dense), dataset.num_embeddings)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loss_of = nn.BCEWithLogitsLoss()
    rate = torch.tensor(dataset.splits["train"].label_rate)
    for epoch in range(epochs):
        train.set_epoch(epoch)
        for dense, sparse, labels in train:
            optimizer.zero_grad()
            loss_of(model(dense, sparse), labels).backward()
            optimizer.step()
        with torch.no_grad():
            parts = [(model(dense, sparse), labels) for dense, sparse, labels in test]
        logits, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        base = loss_of(torch.logit(rate).expand_as(labels), labels)
        print(f"epoch {epoch}: test logloss {loss_of(logits, labels):.4f}, of the base rate {base:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
