"""`model.hstu`: the sequence model of MLPerf's DLRMv4 (Zhai et al. 2024, arXiv:2402.17152)."""

import importlib.util
import os
from dataclasses import dataclass
from enum import Enum

from common.errors import UserError
from common.keys import key


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


@dataclass(frozen=True)
class HSTUConfig:
    """Layers, widths and attention; tables have the width model.embedding_dim."""

    dim: int = key(64, "width of a position", at_least=1)
    num_layers: int = key(2, "layers of attention", at_least=1)
    num_heads: int = key(2, "heads of a layer", at_least=1)
    attention_dim: int = key(32, "of a head's queries and keys", at_least=1)
    hidden_dim: int = key(32, "of a head's values and gates", at_least=1)
    preprocessor_dim: int = key(
        64, "hidden width of the perceptrons that make positions of rows and actions", at_least=1
    )
    item_dim: int = key(128, "hidden width of the candidate's perceptron and of the head", at_least=1)
    action_dim: int = key(8, "of each kind of action", at_least=1)
    input_dropout: float = key(0.0, "of positions", at_least=0, below=1)
    linear_dropout: float = key(0.0, "of each layer's output", at_least=0, below=1)
    max_seq_len: int = key(4096, "positions of a sequence: context, history and candidate", at_least=2)
    num_positions: int = key(8192, "learned position vectors; more distant ones share the last", at_least=1)
    num_time_buckets: int = key(
        2048, "learned vectors of age, in steps of sqrt(minutes); older ones share the last", at_least=1
    )
    position_bound: float | None = key(
        None, "those vectors are uniform in ± this at first; null: 1/sqrt(their number)", above=0
    )
    attention: Attention = key(Attention.bucketed, "how it is computed")
    attention_scale: AttentionScale = key(AttentionScale.global_batch, "what attention is divided by")
    loss_weight: float = key(1.0, "the loss is multiplied by it; MLPerf's reference has 0.2", above=0)


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
