"""`model.hstu`: the sequence model of MLPerf's DLRMv4 (Zhai et al. 2024, arXiv:2402.17152)."""

import importlib.util
import os
from dataclasses import dataclass
from enum import Enum

from app.config.checks import require_at_least
from common.errors import UserError


class Attention(Enum):
    """How attention is computed; all give the same numbers.

    padded: all sequences padded to the longest, memory by its square; bucketed: by length and in chunks, in bounded
    memory; triton: by kernels for GPUs, without padding.
    """

    padded = "padded"
    bucketed = "bucketed"
    triton = "triton"


class AttentionScale(Enum):
    """N, by which attention is divided: a part of the model, which serving must repeat.

    batch: the longest sequence of a process's batch (MLPerf's reference); global_batch: of all processes' batches, so
    that their number changes nothing; max_seq_len: always model.hstu.max_seq_len, so that a score is the sample's own.
    """

    batch = "batch"
    global_batch = "global_batch"
    max_seq_len = "max_seq_len"


@dataclass
class HSTUConfig:
    """Layers, widths and attention; tables have the width model.embedding_dim."""

    dim: int = 64  # width of a position
    num_layers: int = 2
    num_heads: int = 2
    attention_dim: int = 32  # of a head's queries and keys
    hidden_dim: int = 32  # of a head's values and gates
    preprocessor_dim: int = 64  # hidden width of the perceptrons that make positions of rows and actions
    item_dim: int = 128  # hidden width of the candidate's perceptron and of the head
    action_dim: int = 8  # of each kind of action
    input_dropout: float = 0.0  # of positions
    linear_dropout: float = 0.0  # of each layer's output
    max_seq_len: int = 4096  # positions of a sequence: context, history and candidate
    num_positions: int = 8192  # learned position vectors; more distant ones share the last
    num_time_buckets: int = 2048  # learned vectors of age, in steps of sqrt(minutes); older ones share the last
    position_bound: float | None = None  # those vectors are uniform in ± this at first; null: 1/sqrt(their number)
    attention: Attention = Attention.bucketed
    attention_scale: AttentionScale = AttentionScale.global_batch
    loss_weight: float = 1.0  # the loss is multiplied by it; MLPerf's reference has 0.2


def triton_problem(device_type: str) -> str | None:
    """Why Triton's kernels cannot run there; None if they can, such as in its interpreter on a CPU."""
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a GPU; use bucketed, or set TRITON_INTERPRET=1, which computes the same on a CPU, slowly"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; use bucketed, or install it: pip install triton"
    return None


def require_attention(hstu: HSTUConfig | None, device_type: str) -> None:
    """Raises UserError if attention cannot be computed on such a device as configured."""
    if hstu is not None and hstu.attention is Attention.triton and (problem := triton_problem(device_type)):
        raise UserError(f"model.hstu.attention=triton: {problem}")


def validate_hstu(hstu: HSTUConfig) -> None:
    """Raises UserError for values that cannot work."""
    widths = ("dim", "num_layers", "num_heads", "attention_dim", "hidden_dim", "preprocessor_dim", "item_dim",
              "action_dim", "num_positions", "num_time_buckets")  # fmt: skip
    require_at_least({f"model.hstu.{key}": (getattr(hstu, key), 1) for key in widths})
    require_at_least({"model.hstu.max_seq_len": (hstu.max_seq_len, 2)})
    for key in ("input_dropout", "linear_dropout"):
        if not 0 <= getattr(hstu, key) < 1:
            raise UserError(f"model.hstu.{key}={getattr(hstu, key)}: must be at least 0 and below 1")
    bound = hstu.position_bound
    if bound is not None and not 0 < bound < float("inf"):
        raise UserError(f"model.hstu.position_bound={bound}: must be a finite number above 0, or null")
    if not 0 < hstu.loss_weight < float("inf"):
        raise UserError(f"model.hstu.loss_weight={hstu.loss_weight}: must be a finite number above 0")
