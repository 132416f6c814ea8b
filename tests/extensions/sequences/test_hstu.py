"""HSTU against MLPerf's reference (tests/golden/reference/hstu_tiny.npz), and against a naive program in float64.

The naive program is written from Zhai et al. 2024 (arXiv:2402.17152) and MLPerf's DLRMv4; N of the attention is fixed,
so that a sample's logit depends on nothing but the sample.
"""

import importlib.util
import itertools
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec import EmbeddingCollection, KeyedJaggedTensor
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from app.model.embeddings import TableInitRange, TableSpec
from app.runtime.platform import Runtime
from app.training import session
from data_prep.dataset.format import load_manifest
from extensions.sequences import hstu
from extensions.sequences.event_log import SequenceLayout, Sequences
from extensions.sequences.events import Attribute, Cross, EventSchema
from extensions.sequences.hstu import HSTU, EventArch, attend
from extensions.sequences.keys import Attention, HSTUConfig
from tests import reference as plain
from tests.app.conftest import SMALL, composed
from tests.app.test_gpu import PRETENDED
from tests.data_prep.conftest import prepare
from tests.extensions.sequences import event_logs
from tests.extensions.sequences.log_oracle import SECOND, Log, sample_of, windows_of
from tests.once import made_once

# Set for all of the process: Triton reads it when it is imported. Its kernels on a GPU: tests/app/test_gpu.py.
ASKED = os.environ.get("TRITON_INTERPRET") == "1"
MISSING = importlib.util.find_spec("triton") is None
INTERPRETED = [
    pytest.mark.skipif(not ASKED, reason="Triton is not interpreted: .ci/run installs it and sets TRITON_INTERPRET=1"),
    pytest.mark.skipif(ASKED and MISSING, reason="Triton is not installed: pip install -r requirements/triton.in"),
    pytest.mark.slow("tool"),
]
ATTENTIONS = ["bucketed", pytest.param("triton", marks=INTERPRETED)]
GOLDEN = np.load(Path(__file__).parents[2] / "golden/reference/hstu_tiny.npz")
CROSSES = ["user_x_artist", "user_x_album", "user_x_hour", "item_x_hour", "artist_x_hour", "user_x_is_organic"]
CROSSES += ["user_x_artist_x_hour"]
SCHEMA = EventSchema(
    *("uid", "item_id", "timestamp"),
    actions={"listen_plus": {}, "like": {}, "skip": {}},
    label="listen_plus",
    attributes=dict.fromkeys(("artist", "album"), Attribute("", "", "")),
    crosses=dict.fromkeys(CROSSES, Cross((), 1)),
)
CONTEXT, HISTORY, CANDIDATE = SCHEMA.context_tables, SCHEMA.sequence_tables, SCHEMA.candidate_keys
REFERENCE_TABLES = {"user": "uid", "item": "item_id", "artist": "artist_id", "album": "album_id"}  # its other names
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
    "_multitask_module._prediction_module": "head",
}


class GoldenBatch(NamedTuple):
    """A batch, and the candidates' actions and watch times [M]."""

    sequences: Sequences
    ids: KeyedJaggedTensor
    actions: Tensor
    watch: Tensor


def reference_names(num_tasks: int = 1) -> dict[str, str]:
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


def reference_model(attention: Attention, num_tasks: int = 1) -> HSTU:
    """Our model with the reference's sizes, tables and initial values; the candidate shares the history's tables."""
    sizes: dict[str, Any] = {
        "dim": 24,
        "num_layers": 2,
        "num_heads": 2,
        "attention_dim": 8,
        "hidden_dim": 10,
        "preprocessor_dim": 18,
    }
    config = HSTUConfig(**sizes, item_dim=512, action_dim=8, attention=attention, loss_weight=LOSS_WEIGHT)
    keys = dict(zip(HISTORY, CANDIDATE, strict=True))
    specs = []
    for name in (*HISTORY, *CONTEXT):
        features = (name, *([keys[name]] if name in keys else []))
        rows = len(GOLDEN[f"init.table.{REFERENCE_TABLES.get(name, name)}"])
        specs.append(TableSpec(name, features, rows, TABLE_DIM, TableInitRange(), "fp32", mean=False, by_id=True))
    arch = EventArch(specs)
    assert isinstance(arch.rows, EmbeddingCollection)
    arch.rows = EmbeddingCollection(tables=arch.rows.embedding_configs(), device=torch.device("cpu"))
    model = HSTU(config, arch, TABLE_DIM, SCHEMA, num_tasks)
    set_parameters(model, "init.", num_tasks)
    return model


def set_parameters(module: nn.Module, kind: str, num_tasks: int = 1) -> None:
    """Give a model the reference's values; rows of `positions` and `ages` that it does not list are 0."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for reference_name, parameter_name in reference_names().items():
            key = f"multi_{kind}{reference_name}"
            values = torch.from_numpy(GOLDEN[key if num_tasks > 1 and key in GOLDEN else f"{kind}{reference_name}"])
            parameter = parameters.pop(parameter_name).zero_()
            parameter[: len(values)] = values
        for name in (*HISTORY, *CONTEXT):
            parameters.pop(f"sparse_arch.rows.embeddings.{name}.weight").copy_(
                torch.from_numpy(GOLDEN[f"{kind}table.{REFERENCE_TABLES.get(name, name)}"])
            )
    assert not parameters


def reference_batches(kind: str = "") -> Iterator[GoldenBatch]:
    """The batches of `kind` ("" or "multi_"); a sample with several candidates becomes a sequence for each."""
    lengths, candidates = GOLDEN[f"{kind}hist_len"], GOLDEN[f"{kind}cand_len"]
    event_ends, candidate_ends = lengths.sum(axis=1).cumsum(), candidates.sum(axis=1).cumsum()
    for step in range(len(lengths)):
        samples = np.repeat(np.arange(lengths.shape[1]), candidates[step])
        ends = event_ends[step] - lengths[step].sum() + lengths[step].cumsum()
        events = np.concatenate([np.arange(ends[sample] - lengths[step][sample], ends[sample]) for sample in samples])
        candidate_rows = slice(candidate_ends[step] - candidates[step].sum(), candidate_ends[step])
        kinds = ("item", "artist", "album")
        values = [
            *GOLDEN[f"{kind}ctx_ids"][step][samples].T,
            *(GOLDEN[f"{kind}hist_{name}"][events] for name in kinds),
            *(GOLDEN[f"{kind}cand_{name}"][candidate_rows] for name in kinds),
        ]
        single, counts = np.ones(len(samples), np.int64), lengths[step][samples]
        ids = KeyedJaggedTensor(
            keys=[*CONTEXT, *HISTORY, *CANDIDATE],
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate([single] * len(CONTEXT) + [counts] * 3 + [single] * 3)),
        )
        times, actions, candidate_times = (
            torch.from_numpy(GOLDEN[f"{kind}{name}"][rows])
            for name, rows in (("hist_time", events), ("hist_action", events), ("cand_time", candidate_rows))
        )
        divisor = float(len(CONTEXT) + lengths[step].max() + candidates[step].max())
        sequences = Sequences(times, actions, candidate_times, counts.tolist(), divisor)
        targets = [torch.from_numpy(GOLDEN[f"{kind}cand_{name}"][candidate_rows]) for name in ("action", "watch")]
        yield GoldenBatch(sequences, ids, *targets)


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


bce = nn.functional.binary_cross_entropy_with_logits
MLPERF = HSTUConfig(
    dim=512, num_layers=3, num_heads=4, attention_dim=128, hidden_dim=128, preprocessor_dim=256, item_dim=512
)


@pytest.mark.parametrize(
    ("attention", "warmup_steps", "steps"),
    [
        ("bucketed", 0, 10),
        ("bucketed", 4, 10),
        pytest.param("triton", 0, 3, marks=INTERPRETED),  # a step takes four seconds
    ],
)
def test_ten_steps_equal_the_reference(attention: Attention, warmup_steps: int, steps: int) -> None:
    """The reference's losses are up to 3e-6 from float64's, relative, and ours may be on the other side of them."""
    kind = "warm_" if warmup_steps else ""
    model = reference_model(attention)
    trainer = Trainer(model, warmup_steps)
    for step, batch in enumerate(itertools.islice(reference_batches(), steps)):
        logits = model(batch.sequences, batch.ids).squeeze(1)
        loss = LOSS_WEIGHT * bce(logits, (batch.actions & 1).float())
        norm = trainer.update(loss)
        assert loss.item() == pytest.approx(GOLDEN[f"{kind}losses"][step], rel=1e-5)
        np.testing.assert_allclose(logits.detach(), GOLDEN[f"{kind}logits"][step], atol=1e-4)
        if not warmup_steps:
            assert norm == pytest.approx(GOLDEN["grad_norms"][step], rel=1e-4)
    if (warmup_steps, steps) == (0, 10):
        for reference_name, parameter_name in reference_names().items():
            final = GOLDEN[f"final.{reference_name}"]
            np.testing.assert_allclose(model.get_parameter(parameter_name).detach()[: len(final)], final, atol=5e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_several_candidates_and_tasks_equal_the_reference(attention: Attention) -> None:
    model = reference_model(attention, num_tasks=3)
    trainer = Trainer(model)
    batch_logits = []
    for step, batch in enumerate(reference_batches("multi_")):
        logits = model(batch.sequences, batch.ids)
        tasks = [
            bce(logits[:, 0], (batch.actions & 1).float()),
            bce(logits[:, 1], (batch.actions >> 1 & 1).float()),
            nn.functional.mse_loss(logits[:, 2], batch.watch.float()),
        ]
        loss = LOSS_WEIGHT * torch.stack(tasks).sum()
        trainer.update(loss)
        # The reference's own are 1.4e-5 from double precision.
        assert loss.item() == pytest.approx(GOLDEN["multi_losses"][step], abs=3e-5)
        batch_logits.append(logits.detach())
    np.testing.assert_allclose(torch.cat(batch_logits), GOLDEN["multi_logits"], atol=5e-4)


def test_initial_weights_are_xaviers() -> None:
    torch.manual_seed(0)
    model = HSTU(MLPERF, nn.Identity(), 512, SCHEMA)
    for part, is_normal in ((model.action, True), (model.item, False), (model.head, False)):
        for layer in (module for module in part.modules() if isinstance(module, nn.Linear)):
            deviation = math.sqrt(2 / (layer.in_features + layer.out_features))
            assert float(layer.weight.std()) == pytest.approx(deviation, rel=0.1)
            assert (float(layer.weight.abs().max()) > 1.01 * math.sqrt(3) * deviation) is is_normal
            assert not layer.bias.any()


def by_definition(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout) -> Tensor:
    """Position by position, in double precision."""
    out, start = torch.zeros(len(q), *v.shape[1:], dtype=torch.float64), 0
    q, k, v = q.double(), k.double(), v.double()
    for length in layout.lengths:
        for i in range(length):
            for j in range(i + 1):
                score = (q[start + i] * k[start + j]).sum(1) / math.sqrt(q.shape[2])
                out[start + i] += (score * score.sigmoid() / layout.divisor).unsqueeze(1) * v[start + j]
        start += length
    return out


@pytest.mark.medium
@pytest.mark.parametrize("attention", ATTENTIONS)
@settings(max_examples=10 if ASKED else 25, deadline=None)  # interpreted, one takes three seconds
@given(st.lists(st.integers(1, 14), min_size=1, max_size=6), st.booleans())
def test_attention_is_the_definition(attention: Attention, lengths: list[int], candidates_only: bool) -> None:
    """Values and gradients, for sequences of any lengths."""
    layout = SequenceLayout(lengths, 7.0)
    torch.manual_seed(0)
    total = sum(lengths)
    q, k, v = (torch.randn(total, 2, width, requires_grad=True) for width in (3, 3, 5))
    rows = torch.tensor(lengths).cumsum(0) - 1 if candidates_only else torch.arange(total)
    expected = by_definition(q, k, v, layout)[rows]
    weights = torch.randn(expected.shape)
    expected_grads = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    out = attend(attention, q[rows], k, v, layout, candidates_only)
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)
    grads = torch.autograd.grad((out * weights).sum(), (q, k, v))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fault", ["", "an error", "another result"])
def test_auto_takes_kernels_only_where_they_agree_on_the_first_batch(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def kernels(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, candidates_only: bool) -> Tensor:
        calls.append(fault)
        if fault == "an error":
            raise RuntimeError("out of shared memory")
        return attend("bucketed", q, k, v, layout, candidates_only) * (2 if fault else 1)

    monkeypatch.setattr(hstu, "prefers_triton", lambda device: True)
    monkeypatch.setattr(hstu, "attend_by_triton", kernels)
    monkeypatch.setattr(hstu, "_AGREES", {})
    monkeypatch.setattr(logging.getLogger("clickwork"), "propagate", True)
    layout = SequenceLayout([30, 7], 30.0)
    q, k, v = (torch.randn(37, 2, 8) for _ in range(3))
    for _ in range(2):
        torch.testing.assert_close(attend("auto", q, k, v, layout), attend("bucketed", q, k, v, layout))
    assert len(calls) == (1 if fault else 3)
    reasons = {"an error": "fail here (out of shared memory)", "another result": "differ by"}
    assert (reasons[fault] in caplog.text) if fault else not caplog.text


def test_chunks_and_buckets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    lengths = [300, 7, 1, 280, 50, 51, 1]
    q, k, v = (torch.randn(sum(lengths), 2, 8, requires_grad=True) for _ in range(3))
    results = []
    for few_positions, chunk_bytes in ((1000, 1 << 40), (hstu.FEW_POSITIONS, 1 << 14)):
        monkeypatch.setattr(hstu, "FEW_POSITIONS", few_positions)
        monkeypatch.setattr(hstu, "CHUNK_BYTES", chunk_bytes)
        out = attend("bucketed", q, k, v, SequenceLayout(lengths, 300.0))
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for whole, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, whole, atol=1e-6, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(PRETENDED, reason="no GPU, only a pretended one: Triton does not compile for it")
@pytest.mark.parametrize("candidates_only", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-3)])
def test_attention_by_triton_equals_bucketed(dtype: torch.dtype, tolerance: float, candidates_only: bool) -> None:
    torch.set_float32_matmul_precision("highest")
    layout = SequenceLayout([1, 2, 33, 64, 65, 700], 700.0)
    rows = len(layout.lengths) if candidates_only else sum(layout.lengths)
    torch.manual_seed(0)
    sizes = (rows, sum(layout.lengths), sum(layout.lengths), rows)
    *tensors, grad = (torch.randn(size, 4, 128, device="cuda", dtype=dtype) for size in sizes)
    results: list[list[torch.Tensor]] = []
    for kind, compute_dtype in (("triton", dtype), ("bucketed", torch.float32)):
        q, k, v = (tensor.to(compute_dtype, copy=True).requires_grad_() for tensor in tensors)
        out = attend(cast(Attention, kind), q, k, v, layout, candidates_only)
        results.append([out, *torch.autograd.grad(out, (q, k, v), grad.to(compute_dtype))])
    for output, reference in zip(*results, strict=True):
        assert (output.float() - reference).norm() < tolerance * reference.norm()


Parameters = dict[str, Tensor]
PI = 3.14  # the reference's
HISTORY_LENGTH, MIN_HISTORY, SCAN, WINDOW_SECONDS, MAX_SEQ_LEN = event_logs.reference()["params"].tolist()
HEADS, QUERIES, VALUES, LAYERS = 2, 4, 3, 2
MODEL_KEYS = ["model=hstu", "model.embedding_dim=8", "sequences.hstu.dim=12", "sequences.hstu.num_layers=2"]
MODEL_KEYS += ["sequences.hstu.num_heads=2", "sequences.hstu.attention_dim=4", "sequences.hstu.hidden_dim=3"]
MODEL_KEYS += ["sequences.hstu.preprocessor_dim=6", "sequences.hstu.item_dim=10", "sequences.hstu.action_dim=2"]
MODEL_KEYS += [f"sequences.hstu.max_seq_len={MAX_SEQ_LEN}", "sequences.hstu.attention_scale=max_seq_len"]
MODEL_KEYS += ["sequences.hstu.position_bound=0.5"]
DATA = ["sequences.history=interleaved", f"sequences.history_length={HISTORY_LENGTH}", f"sequences.scan_events={SCAN}"]
DATA += [f"sequences.window_seconds={WINDOW_SECONDS}"]
OPTIMIZER = ["optimizer=rowwise_adagrad", "optimizer.dense=adam", "optimizer.lr=0.01", "optimizer.sparse_lr=0.05"]
OPTIMIZER += ["optimizer.beta1=0.95", "optimizer.beta2=0.999", "optimizer.eps=1e-3", "optimizer.max_grad_norm=0.5"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(directory: Path) -> None:
        prepare(*event_logs.write_reference_log(directory), f"data.path={directory}/out")

    return made_once(tmp_path_factory, "reference_log", make) / "out"


def raw_windows() -> list[list[Any]]:
    """Samples of the reference's raw events by window, as `sample_of` gives them."""
    z = event_logs.reference()
    rows = []
    names = ("uid", "item_id", "is_organic", "played_ratio_pct", "event_type")
    for user, item, organic, ratio, kind in zip(*(z[f"raw_{name}"].tolist() for name in names), strict=True):
        values = [user, item, organic, ratio if ratio >= 0 else "", event_logs.EVENT_TYPES[kind]]
        rows.append(dict(zip(names, map(str, values), strict=True)))
    tables = {
        name: dict(zip(*(map(str, z[f"meta_{key}"].tolist()) for key in ("item_id", f"{name}_id")), strict=True))
        for name in ("artist", "album")
    }
    schema = yaml.safe_load(event_logs.TINY_SCHEMA % tuple(z["cross_sizes"]))
    log = Log(schema, rows, [time * SECOND for time in z["raw_timestamp"].tolist()], tables)
    users = sorted({row["uid"] for row in rows}, key=int)
    ids = {"user": {user: int(user) for user in users}, "item": {row["item_id"]: int(row["item_id"]) for row in rows}}
    ids |= {name: {item: int(table.get(item, "0")) for item in ids["item"]} for name, table in tables.items()}
    keys = {
        "history": "interleaved",
        "history_length": HISTORY_LENGTH,
        "scan_events": SCAN,
        "candidate_time": "history",
    }
    keys |= {
        "max_history": MAX_SEQ_LEN - 1 - len(CONTEXT),
        "min_history": MIN_HISTORY,
        "window_seconds": WINDOW_SECONDS,
    }
    windows = windows_of(log, users, keys)
    return [[sample_of(log, user, place, keys, ids) for user, place in window] for window in windows]


def naive_logit(sample: Any, p: Parameters) -> Tensor:
    """The logit of a sample: ids of contexts, of items and attributes of its history, and its own."""
    ids, event_times, actions, query, _ = sample
    count, length = len(CONTEXT), len(event_times)
    x = [p[name][ids[i][0]] @ p["context_weight"][i] + p["context_bias"][i] for i, name in enumerate(CONTEXT)]
    tables = ("item", "artist", "album")
    rows = {name: p[name][ids[count + i] + ids[count + 3 + i]] for i, name in enumerate(tables)}
    for place in range(length + 1):
        vector = perceptron(rows["item"][place], p, "content")
        vector = vector + perceptron(torch.cat([rows[name][place] for name in ("artist", "album")]), p, "attributes")
        if place < length:
            action = torch.cat([float(actions[place] >> bit & 1) * p["actions.rows"][bit] for bit in range(3)])
        else:
            action = p["actions.candidate"][0]
        x.append(vector + perceptron(action, p, "action"))
    times = [0] * count + event_times + [query]
    for place, vector in enumerate(x):
        distance = place if place < count else max(count, 2 * count + length - place)
        age = int(math.sqrt(max(query - times[place], 1e-6) / 60))
        ages, positions = p["ages"], p["positions"]
        x[place] = vector * math.sqrt(len(vector)) + positions[min(distance, len(positions) - 1)]
        x[place] = x[place] + ages[min(age, len(ages) - 1)]
    for number in range(LAYERS):
        x = naive_layer(x, p, f"layers.{number}.")
    hours = query // 3600
    angles = [hours % 24 / 24 * 2 * PI, hours // 24 % 7 / 7 * 2 * PI]
    clock = torch.tensor([wave(angle) for angle in angles for wave in (math.cos, math.sin)], dtype=torch.float64)
    user = normed(torch.cat([x[-1], clock]) @ p["user.0.weight"].T + p["user.0.bias"], p, "user.1.", 1e-5)
    item = perceptron(torch.cat([rows[name][-1] for name in tables]), p, "item")
    hidden = swish((user * item) @ p["head.0.weight"].T + p["head.0.bias"], p, "head.1.norm.")
    return (hidden @ p["head.2.weight"].T + p["head.2.bias"])[0]


def naive_layer(x: list[Tensor], p: Parameters, name: str) -> list[Tensor]:
    """Each position sees itself and all before it."""
    parts = []
    widths = [HEADS * width for width in (VALUES, VALUES, QUERIES, QUERIES)]
    for vector in x:
        mixed = normed(vector, p, f"{name}input_norm.", 1e-6) @ p[f"{name}projection"] + p[f"{name}bias"]
        parts.append(mixed.split(widths))
    out = []
    for i, vector in enumerate(x):
        u, _, q, _ = parts[i]
        u, attended = u * torch.sigmoid(u), []
        for head in range(HEADS):
            head_columns = slice(head * QUERIES, (head + 1) * QUERIES)
            mixed = torch.zeros(VALUES, dtype=torch.float64)
            for _, v, _, k in parts[: i + 1]:
                score = (q[head_columns] * k[head_columns]).sum() / math.sqrt(QUERIES)
                value = v[head * VALUES : (head + 1) * VALUES]
                mixed = mixed + score * torch.sigmoid(score) / MAX_SEQ_LEN * value
            attended.append(mixed)
        joined = torch.cat(attended)
        gated = torch.cat([u, joined, u * normed(joined, p, f"{name}output_norm.", 1e-6)])
        out.append(vector + gated @ p[f"{name}output"])
    return out


def normed(x: Tensor, p: Parameters, name: str, eps: float) -> Tensor:
    return (x - x.mean()) / torch.sqrt(x.var(correction=0) + eps) * p[f"{name}weight"] + p[f"{name}bias"]


def swish(x: Tensor, p: Parameters, name: str) -> Tensor:
    return x * torch.sigmoid(normed(x, p, name, 1e-5))


def perceptron(x: Tensor, p: Parameters, name: str) -> Tensor:
    hidden = swish(x @ p[f"{name}.0.weight"].T + p[f"{name}.0.bias"], p, f"{name}.1.norm.")
    return normed(hidden @ p[f"{name}.2.weight"].T + p[f"{name}.2.bias"], p, f"{name}.3.", 1e-5)


def build_session(runtime: Runtime, root: Path) -> session.Session:
    config = composed(*MODEL_KEYS, *DATA, *OPTIMIZER, "run.name=x", f"data.path={root}", *SMALL[-3:])
    return session.build(config, runtime, root, load_manifest(root))


def oracle_parameters(this: session.Session) -> Parameters:
    return {name: torch.from_numpy(np.array(values)).double().requires_grad_() for name, values in this.parameters()}


def logits_of(samples: list[Any], parameters: Parameters) -> Tensor:
    return torch.stack([naive_logit(sample, parameters) for sample in samples])


def test_scores_are_those_of_the_raw_events(runtime: Runtime, root: Path) -> None:
    this, samples = build_session(runtime, root), raw_windows()[-1]
    scores = this.score(this.split("val").eval_batches(16))
    assert scores.labels.tolist() == [sample[-1] for sample in samples]
    indices = range(0, len(samples), max(1, len(samples) // 8))
    with torch.no_grad():
        expected = logits_of([samples[i] for i in indices], oracle_parameters(this))
    np.testing.assert_allclose(scores.logits[list(indices)], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow("examples")
def test_steps_are_those_of_the_raw_events(runtime: Runtime, root: Path) -> None:
    this, windows = build_session(runtime, root), raw_windows()
    samples = [sample for window in windows[:-1] for sample in window]
    parameters, batch_size = oracle_parameters(this), 8
    tables = [parameters[table.name] for table in this.model.module.sparse_arch.tables]
    dense = [value for value in parameters.values() if not any(value is table for table in tables)]
    of_tables = plain.Optimizer("rowwise_adagrad", tables, [], eps=1e-3)
    of_dense = plain.Optimizer("adam", [], dense, eps=1e-3, betas=(0.95, 0.999))
    for step, batch in zip(range(4), this.split("train").train_batches(batch_size, 0, 0, 0), strict=False):
        this.begin_step(step)
        this.optimizer.zero_grad()
        loss = this.loss(this.forward(batch), batch.labels)
        loss.backward()
        this.optimizer.step()
        step_samples = samples[step * batch_size : (step + 1) * batch_size]
        expected = plain.bce(logits_of(step_samples, parameters), torch.tensor([sample[-1] for sample in step_samples]))
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5), f"step {step}"
        gradients = [value.grad for value in dense if value.grad is not None]
        norm = torch.stack([(gradient**2).sum() for gradient in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.5 / norm.item()))
        of_tables.step(0.05)
        of_dense.step(0.01)
    for name, values in this.parameters():
        np.testing.assert_allclose(values, parameters[name].detach().numpy(), atol=3e-5, err_msg=name)
