"""FuxiCTR: a DLRM of its own layers under its own `train_epoch`, batches by torch's DataLoader."""

import tempfile
import time
from collections import OrderedDict

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import FeatureEmbedding, InnerProductInteraction, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.rows import DENSE_ARCH, DIM, LEARNING_RATE, NUM_DENSE, OVER_ARCH, Rows


class FuxiDLRM(BaseModel):
    """dense_arch, feature embeddings, inner products, over_arch: the layers that FuxiCTR offers for each."""

    def __init__(self, feature_map: FeatureMap, directory: str) -> None:
        super().__init__(feature_map, model_id="DLRM", gpu=-1, verbose=0, model_root=directory, metrics=["logloss"])
        self.names = [name for name, spec in feature_map.features.items() if spec["type"] == "numeric"]
        self.embedding_layer = FeatureEmbedding(feature_map, DIM, not_required_feature_columns=self.names)
        fields = feature_map.num_fields - len(self.names) + 1
        self.bottom = MLP_Block(len(self.names), output_dim=DIM, hidden_units=list(DENSE_ARCH[:-1]),
                                hidden_activations="relu", output_activation="relu")  # fmt: skip
        self.interaction = InnerProductInteraction(fields, output="inner_product")
        self.top = MLP_Block(DIM + fields * (fields - 1) // 2, output_dim=1, hidden_units=list(OVER_ARCH[:-1]),
                             hidden_activations="relu", output_activation=self.output_activation)  # fmt: skip
        self.compile("SGD", "binary_crossentropy", LEARNING_RATE)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Probabilities under y_pred."""
        found = self.get_inputs(inputs)
        dense = self.bottom(torch.stack([found.pop(name).float() for name in self.names], dim=1))
        vectors = torch.cat([self.embedding_layer(found), dense.unsqueeze(1)], dim=1)
        return {"y_pred": self.top(torch.cat([dense, self.interaction(vectors)], dim=1))}


def seconds_of_epoch(rows: Rows, batch_size: int, threads: int) -> float:
    """Seconds to train on all rows once."""
    torch.set_num_threads(threads)
    dense = {f"int_{i}": {"source": "", "type": "numeric"} for i in range(NUM_DENSE)}
    sparse = {f"cat_{i}": {"source": "", "type": "categorical", "vocab_size": count, "padding_idx": None}
              for i, count in enumerate(rows.tables)}  # fmt: skip
    names = [*dense, *sparse]
    columns = torch.from_numpy(rows.dense), torch.from_numpy(rows.sparse), torch.from_numpy(rows.labels)

    def collate(items: list[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        numbers, ids, labels = (torch.stack(part) for part in zip(*items, strict=True))
        values = [*numbers.unbind(1), *ids.unbind(1)]
        return {**dict(zip(names, values, strict=True)), "label": labels}

    loader = DataLoader(TensorDataset(*columns), batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    with tempfile.TemporaryDirectory() as directory:
        feature_map = FeatureMap("benchmark", directory)
        feature_map.features, feature_map.labels = OrderedDict({**dense, **sparse}), ["label"]
        feature_map.num_fields, feature_map.default_emb_dim = len(names), DIM
        model = FuxiDLRM(feature_map, directory)
        model.train()
        model._max_gradient_norm = 10.0
        began = time.perf_counter()
        count = 0
        for batch in loader:
            model.train_step(batch)
            count += batch_size
        return (time.perf_counter() - began) * len(rows.labels) / count
