"""DLRM (Naumov et al. 2019, arXiv:1906.00091), with any interaction.

Shapes: B samples, N dense features, F sparse features, D embedding_dim.
"""

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

from app.config import ModelConfig
from app.model.interaction import make_interaction, mlp


class DLRM(nn.Module):
    """dense_arch over dense features, sparse_arch over ids, their interaction, over_arch to one logit."""

    def __init__(self, config: ModelConfig, num_dense: int, sparse_arch: EmbeddingBagCollection) -> None:
        """sparse_arch: one table a feature, all of dimension config.embedding_dim."""
        super().__init__()
        self.feature_names = [name for table in sparse_arch.embedding_bag_configs() for name in table.feature_names]
        self.sparse_arch = sparse_arch
        self.dense_arch = mlp(num_dense, config.dense_arch, final_relu=True)
        self.interaction = make_interaction(config, len(self.feature_names))
        self.over_arch = mlp(self.interaction.num_outputs, config.over_arch, final_relu=False)
        self._order: Tensor | None = None
        self._order_known = False

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """dense_features [B, N] float32 and F bags a sample to logits [B] float32."""
        sparse = self._in_feature_order(self.sparse_arch(sparse_features))
        dense = self.dense_arch(dense_features)
        return self.over_arch(self.interaction(dense, sparse)).squeeze(1).float()

    def _in_feature_order(self, pooled: KeyedTensor) -> Tensor:
        """[B, F, D]: a sharded collection returns its features grouped by the rank that holds them."""
        values = pooled.values().view(-1, len(self.feature_names), pooled.length_per_key()[0])
        if not self._order_known:
            keys = list(pooled.keys())
            if keys != self.feature_names:
                self._order = torch.tensor([keys.index(name) for name in self.feature_names], device=values.device)
            self._order_known = True
        return values if self._order is None else values.index_select(1, self._order)
