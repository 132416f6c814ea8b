"""The reference's tiny HSTU of tests/golden/reference/hstu_tiny.npz: our model with its values, and its batches."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchrec import EmbeddingCollection, KeyedJaggedTensor
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from app.config.model import Storage
from app.model.embeddings import TableInitRange, TableSpec
from extensions.sequences.event_log import Sequences
from extensions.sequences.hstu import HSTU, EventArch, EventKeys
from extensions.sequences.keys import Attention, HSTUConfig

# Set for all of the process: Triton reads it when it is imported. Its kernels on a GPU: tests/app/test_gpu.py.
ASKED = os.environ.get("TRITON_INTERPRET") == "1"
MISSING = importlib.util.find_spec("triton") is None
INTERPRETED = [
    pytest.mark.skipif(not ASKED, reason="Triton is not interpreted: .ci/run installs it and sets TRITON_INTERPRET=1"),
    pytest.mark.skipif(ASKED and MISSING, reason="Triton is not installed: pip install -r requirements/triton.in"),
    pytest.mark.slow("tool"),
]
ATTENTIONS = [Attention.padded, Attention.bucketed, pytest.param(Attention.triton, marks=INTERPRETED)]
GOLDEN = np.load(Path(__file__).parents[2] / "golden/reference/hstu_tiny.npz")
CONTEXT = ["uid", "user_x_artist", "user_x_album", "user_x_hour", "item_x_hour", "artist_x_hour", "user_x_is_organic"]
CONTEXT += ["user_x_artist_x_hour"]
HISTORY = ["item_id", "artist_id", "album_id"]
CANDIDATE = ["item_candidate_id", "item_candidate_artist_id", "item_candidate_album_id"]
KEYS = EventKeys(tuple(CONTEXT), tuple(HISTORY), tuple(CANDIDATE), num_actions=3)
TABLE_DIM, LOSS_WEIGHT, MAX_NORM = 16, 0.2, 1.0
PREPROCESSOR, TRANSDUCER = "_hstu_transducer._input_preprocessor.", "_hstu_transducer."
LAYER = {"_uvqk_weight": "projection", "_uvqk_beta": "bias", "_input_norm_weight": "input_norm.weight"}
LAYER |= {"_input_norm_bias": "input_norm.bias", "_output_weight": "output"}
LAYER |= {"_output_norm_weight": "output_norm.weight", "_output_norm_bias": "output_norm.bias"}
ALIKE = {
    f"{PREPROCESSOR}_batched_contextual_linear_weights": "context_weight",
    f"{PREPROCESSOR}_batched_contextual_linear_bias": "context_bias",
    f"{PREPROCESSOR}_action_encoder._action_embedding_table": "actions.rows",
    f"{PREPROCESSOR}_action_encoder._target_action_embedding_table": "actions.candidate",
    f"{TRANSDUCER}_positional_encoder._position_embeddings_weight": "positions",
    f"{TRANSDUCER}_positional_encoder._timestamp_embeddings_weight": "ages",
}
PERCEPTRONS = {
    f"{PREPROCESSOR}_content_embedding_mlp": "content",
    f"{PREPROCESSOR}_additional_embedding_mlp": "attributes",
    f"{PREPROCESSOR}_action_embedding_mlp": "action",
    "_item_embedding_mlp": "item",
    "_multitask_module._prediction_module": "head.layers",
}


class GoldenBatch(NamedTuple):
    """A batch, and the candidates' actions and watch times [M]."""

    sequences: Sequences
    ids: KeyedJaggedTensor
    actions: Tensor
    watch: Tensor


def names(num_tasks: int = 1) -> dict[str, str]:
    """Our names of dense parameters by the reference's."""
    parameter_names = dict(ALIKE)
    parameter_names |= {
        f"{TRANSDUCER}_stu_module._stu_layers.{number}.{reference_name}": f"layers.{number}.{parameter_name}"
        for number in (0, 1)
        for reference_name, parameter_name in LAYER.items()
    }
    for part in ("weight", "bias"):
        parameter_names[f"{TRANSDUCER}_output_postprocessor._time_feature_combiner.{part}"] = f"user.0.{part}"
        parameter_names[f"{TRANSDUCER}_output_postprocessor._layer_norm.{part}"] = f"user.1.{part}"
        for reference_name, parameter_name in PERCEPTRONS.items():
            parameter_names |= {
                f"{reference_name}.{number}.{part}": f"{parameter_name}.{place}.{part}"
                for number, place in enumerate(("0", "1.norm", "2", "3"))
                if f"init.{reference_name}.{number}.{part}" in GOLDEN
            }
    return parameter_names


def config(attention: Attention) -> HSTUConfig:
    """The reference's sizes."""
    return HSTUConfig(
        dim=24,
        num_layers=2,
        num_heads=2,
        attention_dim=8,
        hidden_dim=10,
        preprocessor_dim=18,
        item_dim=512,
        action_dim=8,
        attention=attention,
        loss_weight=LOSS_WEIGHT,
    )


def tables() -> list[TableSpec]:
    """The reference's tables; the candidate shares the history's."""
    keys = dict(zip(HISTORY, CANDIDATE, strict=True))
    specs = []
    for name in (*HISTORY, *CONTEXT):
        features, rows = (name, *([keys[name]] if name in keys else [])), len(GOLDEN[f"init.table.{name}"])
        kind = TableInitRange(), Storage.fp32
        specs.append(TableSpec(name, features, rows, TABLE_DIM, *kind, mean=False, by_id=True))
    return specs


def model(attention: Attention, num_tasks: int = 1) -> HSTU:
    """Our model with the reference's initial values."""
    arch = EventArch(tables())
    assert isinstance(arch.rows, EmbeddingCollection)
    arch.rows = EmbeddingCollection(tables=arch.rows.embedding_configs(), device=torch.device("cpu"))
    hstu = HSTU(config(attention), arch, TABLE_DIM, KEYS, num_tasks)
    set_parameters(hstu, "init.", num_tasks)
    return hstu


def set_parameters(module: nn.Module, kind: str, num_tasks: int = 1) -> None:
    """Give a model the reference's values; rows of `positions` and `ages` that it does not list are 0."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for reference_name, parameter_name in names().items():
            key = f"multi_{kind}{reference_name}"
            values = torch.from_numpy(GOLDEN[key if num_tasks > 1 and key in GOLDEN else f"{kind}{reference_name}"])
            parameter = parameters.pop(parameter_name).zero_()
            parameter[: len(values)] = values
        for name in (*HISTORY, *CONTEXT):
            parameters.pop(f"sparse_arch.rows.embeddings.{name}.weight").copy_(
                torch.from_numpy(GOLDEN[f"{kind}table.{name}"])
            )
    assert not parameters


def batches(kind: str = "", part: slice = slice(None)) -> Iterator[GoldenBatch]:
    """The batches of `kind` ("" or "multi_"), or only some samples of each, with the divisor of all."""
    lengths, candidates = GOLDEN[f"{kind}hist_len"], GOLDEN[f"{kind}cand_len"]
    event_ends, candidate_ends = lengths.cumsum().reshape(lengths.shape), candidates.cumsum().reshape(lengths.shape)
    for step in range(len(lengths)):
        indices = np.arange(lengths.shape[1])[part]
        events = _ranges(event_ends[step][indices], lengths[step][indices])
        candidate_rows = _ranges(candidate_ends[step][indices], candidates[step][indices])
        kinds = ("item", "artist", "album")
        values = [
            *GOLDEN[f"{kind}ctx_ids"][step][indices].T,
            *(GOLDEN[f"{kind}hist_{name}"][events] for name in kinds),
            *(GOLDEN[f"{kind}cand_{name}"][candidate_rows] for name in kinds),
        ]
        counts = [np.ones(len(indices), np.int64)] * len(CONTEXT)
        counts += [lengths[step][indices]] * 3 + [candidates[step][indices]] * 3
        ids = KeyedJaggedTensor(
            keys=[*CONTEXT, *HISTORY, *CANDIDATE],
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate(counts)),
        )
        times, actions, candidate_times = (
            torch.from_numpy(GOLDEN[f"{kind}{name}"][rows])
            for name, rows in (("hist_time", events), ("hist_action", events), ("cand_time", candidate_rows))
        )
        divisor = float(len(CONTEXT) + lengths[step].max() + candidates[step].max())
        counts_of = [each[step][indices].tolist() for each in (lengths, candidates)]
        sequences = Sequences(times, actions, candidate_times, *counts_of, divisor)
        yield GoldenBatch(
            sequences,
            ids,
            *(torch.from_numpy(GOLDEN[f"{kind}cand_{name}"][candidate_rows]) for name in ("action", "watch")),
        )


def _ranges(ends: Any, lengths: Any) -> Any:
    return np.concatenate([np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)])


class Trainer:
    """The reference's optimizers: clipped Adam, and row-wise Adagrad in the tables' backward."""

    def __init__(self, hstu: HSTU, warmup_steps: int = 0) -> None:
        apply_optimizer_in_backward(RowWiseAdagrad, hstu.sparse_arch.parameters(), {"lr": 5e-2, "eps": 1e-8})
        self._tables = list(hstu.sparse_arch.parameters())
        self._dense = [value for name, value in hstu.named_parameters() if not name.startswith("sparse_arch")]
        self._adam = torch.optim.Adam(self._dense, lr=1e-2, betas=(0.95, 0.999), eps=1e-8)
        self._warmup_steps, self._step = warmup_steps, 0

    def update(self, loss: Tensor) -> float:
        """One step; return the dense gradients' norm before clipping."""
        factor = min(1.0, self._step / self._warmup_steps) if self._warmup_steps else 1.0
        in_backward: list[Any] = [
            optimizer for table in self._tables for optimizer in vars(table)["_in_backward_optimizers"]
        ]
        for optimizer, rate in ((self._adam, 1e-2), *((optimizer, 5e-2) for optimizer in in_backward)):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        self._adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._dense, MAX_NORM)
        self._adam.step()
        self._step += 1
        return float(norm)
