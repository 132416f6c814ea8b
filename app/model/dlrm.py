"""DLRM (Naumov et al. 2019, arXiv:1906.00091), with any interaction.

Shapes: B samples, N dense features, F sparse features, D embedding_dim.
"""

import math

from torch import Tensor, nn
from torchrec import KeyedJaggedTensor

from app.config import ModelConfig
from app.config.model import DenseInit
from app.model.interaction import make_interaction
from app.model.mlp import mlp


class DLRM(nn.Module):
    """dense_arch over dense features, sparse_arch over ids, their interaction, over_arch to one logit."""

    checked_inputs = ("dense_arch output", "embedding output")

    def __init__(self, config: ModelConfig, num_dense: int, num_sparse: int, sparse_arch: nn.Module) -> None:
        """sparse_arch: bags of the F features to [B, F, D]. Without dense features dense_arch is given a constant."""
        super().__init__()
        self.sparse_arch = sparse_arch
        self.dense_arch = mlp(num_dense or 1, config.dense_arch, config.dense_final_relu)
        self.interaction = make_interaction(config, num_sparse)
        self.over_arch = mlp(self.interaction.num_outputs, config.over_arch, final_relu=False)
        if config.dense_init is DenseInit.facebookresearch:
            for part in (self.dense_arch, self.interaction, self.over_arch):
                part.apply(_initialise_as_facebookresearch)

    @property
    def checked(self) -> nn.Module:
        """The module whose inputs, `checked_inputs`, are checked at each step."""
        return self.interaction

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """dense_features [B, N] float32 and F bags a sample to logits [B] float32."""
        sparse = self.sparse_arch(sparse_features)
        if not dense_features.shape[1]:
            dense_features = dense_features.new_ones(dense_features.shape[0], 1)
        dense = self.dense_arch(dense_features)
        return self.over_arch(self.interaction(dense, sparse)).squeeze(1).float()


def _initialise_as_facebookresearch(module: nn.Module) -> None:
    """Redraw a linear layer; other modules stay."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=math.sqrt(2 / (module.in_features + module.out_features)))
        nn.init.normal_(module.bias, std=math.sqrt(1 / module.out_features))
