"""Keys `sequences`, and their checks against the whole configuration (docs/sequences.md)."""

import importlib.util
import os
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from common.errors import UserError
from common.extensions import keys_of_extension
from common.keys import key, keys_of, shown

# Strategies of attention, all with the same results. bucketed: groups by length and in chunks, with bounded memory;
# triton: kernels for GPUs, without padding. auto: triton on CUDA where it is installed and agrees with bucketed on the
# first batch, else bucketed.
Attention: TypeAlias = Literal["auto", "bucketed", "triton"]
# N, the divisor of attention. It is part of the model, so serving must repeat it. batch: longest sequence of a
# process's batch (MLPerf's reference); global_batch: of all processes' batches, so that their number does not matter;
# max_seq_len: always that key's value, so that a score depends only on the sample.
AttentionScale: TypeAlias = Literal["batch", "global_batch", "max_seq_len"]
# Events of a history. interleaved: the last events of each action, in equal numbers, merged by time, as in MLPerf's
# DLRMv4; last_n: the last events of any action.
HistoryKind: TypeAlias = Literal["interleaved", "last_n"]
# Time of a candidate, the reference for ages of events and for the time of day. history: time of the history's last
# event, as in MLPerf's DLRMv4; own: its own, which reveals the gap to that event.
CandidateTime: TypeAlias = Literal["history", "own"]
# Order of samples in a window. user: by user, then time; shuffled: by seed, epoch and window.
AnchorOrder: TypeAlias = Literal["user", "shuffled"]
# Use of a window's samples that fill no batch. carry: they begin the next window's first batch; drop: left out.
WindowRest: TypeAlias = Literal["carry", "drop"]


@dataclass(frozen=True)
class HSTUConfig:
    """HSTU as in MLPerf's DLRMv4 (Zhai et al. 2024, arXiv:2402.17152); tables have the width model.embedding_dim."""

    dim: int = key(64, "width of a position", at_least=1)
    num_layers: int = key(2, "layers of attention", at_least=1)
    num_heads: int = key(2, "heads of a layer", at_least=1)
    attention_dim: int = key(32, "width of a head's queries and keys", at_least=1)
    hidden_dim: int = key(32, "width of a head's values and gates", at_least=1)
    preprocessor_dim: int = key(
        64, "hidden width of the perceptrons that turn rows and actions into positions", at_least=1
    )
    item_dim: int = key(128, "hidden width of the candidate's perceptron and of the head", at_least=1)
    action_dim: int = key(8, "width of each kind of action", at_least=1)
    input_dropout: float = key(0.0, "dropout of positions", at_least=0, below=1)
    linear_dropout: float = key(0.0, "dropout of each layer's output", at_least=0, below=1)
    max_seq_len: int = key(4096, "positions of a sequence: context, history and candidate", at_least=2)
    num_positions: int = key(8192, "learned position vectors; more distant ones share the last", at_least=1)
    num_time_buckets: int = key(
        2048, "learned vectors of age, in steps of sqrt(minutes); older ones share the last", at_least=1
    )
    position_bound: float | None = key(
        None, "bound of the uniform initial values of these vectors; null: 1/sqrt(their number)", above=0
    )
    attention: Attention = key("auto", "strategy of its computation; auto: triton on CUDA, else bucketed")
    attention_scale: AttentionScale = key("global_batch", "divisor of attention")
    loss_weight: float = key(1.0, "factor of the loss; MLPerf's reference has 0.2", above=0)


@dataclass(frozen=True)
class SequencesConfig:
    """Samples of a dataset of events, and the layers of model=hstu."""

    min_history: int | None = key(
        None, "events of a sample's user before the sample; null: the dataset's own", at_least=0
    )
    window_seconds: int | None = key(None, "length of the windows of time; null: the dataset's own", at_least=1)
    eval_window: int | None = key(None, "window to evaluate; training uses those before it; null: the last", at_least=1)
    order: AnchorOrder = key("user", "order of samples inside a window")
    rest: WindowRest = key("carry", "use of samples that fill no batch at a window's end")
    history: HistoryKind = key("interleaved", "earlier events that form a history")
    history_length: int = key(200, "events of a history; interleaved: divided by the number of actions", at_least=1)
    candidate_time: CandidateTime = key("history", "reference time for ages and the time of day")
    scan_events: int = key(20_000, "events before a sample among which its history is searched", at_least=1)
    tasks: list[str] = key([], "actions to predict besides the label; their losses are added")

    hstu: HSTUConfig = field(default_factory=HSTUConfig)


@dataclass(frozen=True)
class SyntheticEventsConfig:
    """Events whose labels come from a known model of the user's history (see extensions/sequences/synthetic.py)."""

    users: int = key(2_000, "number of users", at_least=1)
    days: int = key(20, "days of the log", within="[2, 40000]")
    events_per_day: float = key(
        8.0, "mean listens per user and day; about one in twenty is also liked", within="(0, 10000]"
    )
    items: int = key(500, "number of items", at_least=100)
    stay: float = key(
        0.3, "probability that a listen is of the user's current artist; otherwise of any", within="[0, 1)"
    )
    seed: int = key(0, "decides every byte", at_least=0)


def triton_problem(device_type: str) -> str | None:
    """Return why Triton's kernels cannot run on a device; None if they can, for instance interpreted on a CPU."""
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a GPU; use bucketed, or set TRITON_INTERPRET=1, which computes the same on a CPU, slowly"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; use bucketed, or install it: pip install triton"
    return None


def require_device(config: object, device_type: str) -> None:
    """Raise UserError if the device cannot compute the configured attention."""
    attention = keys_of_extension(config, SequencesConfig).hstu.attention
    if attention == "triton" and (problem := triton_problem(device_type)):
        raise UserError(f"sequences.hstu.attention=triton: {problem}")


def refuse_without_model(config: Any) -> None:
    """Raise UserError for a key of this extension with a model that does not read it."""
    if config.model.name == "hstu":
        return
    given, defaults = keys_of_extension(config, SequencesConfig), SequencesConfig()
    for name, *_ in keys_of(SequencesConfig):
        value = attrgetter(name)(given)
        if value != attrgetter(name)(defaults):
            raise UserError(f"sequences.{name}={shown(value)}: has no effect without model=hstu; leave it out")
