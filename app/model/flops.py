"""Floating-point operations of a sample, counted by torch on the meta device: nothing is computed."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from app.config import ModelConfig
from app.model.dlrm import DLRM


def training_flops(config: ModelConfig, num_dense: int, num_sparse: int) -> int:
    """Return the FLOPs of matrix products for one sample, forward and backward: dense_arch, interaction, over_arch.

    A multiplication and an addition count as two. Lookups multiply nothing and count as none.
    """
    with torch.device("meta"):
        # In evaluation mode, since batch norm refuses a single sample.
        model = DLRM(config, num_dense, num_sparse, nn.Identity()).to("meta").eval()
        inputs = torch.empty(1, num_dense or 1)  # a constant if there are no dense features
        vectors = torch.empty(1, num_sparse, config.embedding_dim, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            model.over_arch(model.interaction(model.dense_arch(inputs), vectors)).sum().backward()
    return int(counter.get_total_flops())
