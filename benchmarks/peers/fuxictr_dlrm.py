"""FuxiCTR, which has no DLRM: one of its own layers, under its own `train_step` and its own loader of .npz files."""

from collections import OrderedDict

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
from fuxictr.pytorch.layers import FeatureEmbedding, InnerProductInteraction, MLP_Block
from fuxictr.pytorch.models import BaseModel
from numpy.typing import NDArray

from benchmarks.peers.curve import Point, Task, measure
from benchmarks.peers.rows import DENSE_ARCH, DIM, NUM_DENSE, OVER_ARCH, Rows, load_rows, load_tables


class FuxiDLRM(BaseModel):
    """dense_arch, feature embeddings, inner products, over_arch: the layers that FuxiCTR offers for each."""

    def __init__(self, feature_map: FeatureMap, task: Task) -> None:
        super().__init__(
            feature_map, model_id="DLRM", gpu=-1, verbose=0, model_root=str(task.work), metrics=["logloss"]
        )
        self.names = [name for name, spec in feature_map.features.items() if spec["type"] == "numeric"]
        self.embedding_layer = FeatureEmbedding(feature_map, DIM, not_required_feature_columns=self.names)
        fields = feature_map.num_fields - len(self.names) + 1
        self.bottom = MLP_Block(
            len(self.names),
            output_dim=DIM,
            hidden_units=list(DENSE_ARCH[:-1]),
            hidden_activations="relu",
            output_activation="relu",
        )
        self.interaction = InnerProductInteraction(fields, output="inner_product")
        self.top = MLP_Block(
            DIM + fields * (fields - 1) // 2,
            output_dim=1,
            hidden_units=list(OVER_ARCH[:-1]),
            hidden_activations="relu",
            output_activation=self.output_activation,
        )
        self.compile("Adagrad", "binary_crossentropy", task.rate)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Probabilities under y_pred."""
        features = self.get_inputs(inputs)
        dense = self.bottom(torch.stack([features.pop(name).float() for name in self.names], dim=1))
        vectors = torch.cat([self.embedding_layer(features), dense.unsqueeze(1)], dim=1)
        return {"y_pred": self.top(torch.cat([dense, self.interaction(vectors)], dim=1))}


def run(task: Task) -> list[Point]:
    """Train and evaluate."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(task.seed)
    dense = {f"int_{i}": {"source": "", "type": "numeric"} for i in range(NUM_DENSE)}
    sparse = {
        f"cat_{i}": {"source": "", "type": "categorical", "vocab_size": count, "padding_idx": None}
        for i, count in enumerate(load_tables(task.work))
    }
    feature_map = FeatureMap("benchmark", str(task.work))
    feature_map.features, feature_map.labels = OrderedDict({**dense, **sparse}), ["label"]
    feature_map.num_fields, feature_map.default_emb_dim = len(feature_map.features), DIM
    feature_map.set_column_index()
    model = FuxiDLRM(feature_map, task)
    model._max_gradient_norm = 10.0  # the default of its `fit`

    def loader(rows: Rows, name: str, shuffle: bool) -> NpzDataLoader:
        path = task.work / f"{name}.npz"
        columns = [*rows.dense.T, *rows.sparse.T, rows.labels]
        np.savez(path, **dict(zip([*feature_map.features, "label"], columns, strict=True)))
        return NpzDataLoader(feature_map, str(path), task.batch, shuffle, num_workers=0)

    def train(batches: NpzDataLoader) -> None:
        model.train()
        for batch in batches:
            model.train_step(batch)

    def predict(rows: Rows) -> NDArray[np.float32]:
        model.eval()
        with torch.no_grad():
            return np.concatenate([model(batch)["y_pred"].numpy()[:, 0] for batch in held_out])

    held_out = loader(load_rows(task.work, "test"), "fuxictr_test", shuffle=False)
    parts = [loader(rows, "fuxictr_train", shuffle=True) for rows in task.parts()]
    return measure(task, parts, train, predict)
