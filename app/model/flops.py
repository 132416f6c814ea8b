"""Floating-point operations of a sample, counted by torch on the meta device: nothing is computed."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from app.config import ModelConfig
from app.model.interaction import make_interaction
from app.model.mlp import mlp


def training_flops(config: ModelConfig, num_dense: int, num_sparse: int) -> int:
    """FLOPs of matrix products, forward and backward, of one sample: dense_arch, interaction and over_arch.

    A multiplication and an addition count as two; lookups, which multiply nothing, as none.
    """
    num_dense = max(num_dense, 1)  # without dense features a constant
    with torch.device("meta"):
        interaction = make_interaction(config, num_sparse)
        dense_arch = mlp(num_dense, config.dense_arch, final_relu=True)
        over_arch = mlp(interaction.num_outputs, config.over_arch, final_relu=False)
        inputs = torch.empty(1, num_dense)
        vectors = torch.empty(1, num_sparse, config.embedding_dim, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            over_arch(interaction.to("meta")(dense_arch(inputs), vectors)).sum().backward()
    return int(counter.get_total_flops())
