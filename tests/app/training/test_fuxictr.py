"""Ten steps of our models against FuxiCTR's own, recorded by tests/golden/record_fuxictr.py."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.data.batch import layout_of
from app.runtime.platform import Runtime
from app.sharding.execute import table_weights
from app.training import session
from data_prep.dataset.format import Manifest, ShardArrays, Split, load_manifest, save_manifest, write_shard
from tests.app.conftest import SMALL, composed
from tests.golden.record_fuxictr import BATCH, CATEGORIES, DIM, NUMERIC, OUT, VOCABULARY, batches

OPTIMIZER = ["optimizer=adam", "optimizer.lr=0.01", "optimizer.max_grad_norm=0.7", "optimizer.clip_tables=true"]
VECTORS = ["model.numeric=vectors", "model.dense_arch=[]"]
DCN = ["model.interaction=dcn", "model.dcn_full_rank=true", *VECTORS, "model.over_arch=[1]"]
STACKS = [f"model.dense_arch=[8,7,{DIM}]", "model.over_arch=[9,8,1]"]
CASES = {
    "dlrm_dot": [*STACKS, "model.interaction=dot"],
    "dlrm_dot_bn": [*STACKS, "model.interaction=dot", "model.batch_norm=true"],
    "dlrm_cat": [*STACKS, "model.interaction=cat"],
    "dlrm_cat_bn": [*STACKS, "model.interaction=cat", "model.batch_norm=true"],
    "dcnv2": [*DCN, "model.deep_arch=[9,8]", "model.dcn_num_layers=2"],
    "crossnetv2": [*DCN, "model.dcn_num_layers=3"],
    "dnn": ["model.interaction=cat", *VECTORS, "model.over_arch=[9,8,1]"],
    "lr": ["model.interaction=sum", *VECTORS, "model.over_arch=[]", "model.embedding_dim=1"],
}
L2 = {"crossnetv2": 0.01, "lr": 0.02}
GOLDEN: dict[str, NDArray[np.float32]] = dict(np.load(OUT))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the recorded columns; its rows are not used."""
    root, splits = tmp_path_factory.mktemp("fuxictr"), {}
    for name in ("train", "val", "test"):
        labels, dense = np.zeros((BATCH, 1), np.int32), np.zeros((BATCH, len(NUMERIC)), np.float32)
        shard = write_shard(root, name, "00000", ShardArrays(labels, dense, np.zeros((BATCH, 4), np.int32)))
        splits[name] = Split(rows=BATCH, label_rate=0.0, shards=[shard])
    schema = {"label": "label", "dense": NUMERIC, "sparse": CATEGORIES}
    sizes = dict(zip(CATEGORIES, VOCABULARY, strict=True))
    save_manifest(root, Manifest(schema, {"name": "test"}, sizes, splits, [], 3 * BATCH, 0.0, "test"))
    return root


def recorded(case: str, stage: str) -> dict[str, Tensor]:
    """Recorded values by our names, with inputs of over_arch in our order: theirs has the dense vector last."""
    prefix = f"{case}/{stage}/"
    keys = [key for key in GOLDEN if key.startswith(prefix)]
    values = {key.removeprefix(prefix): torch.from_numpy(GOLDEN[key]) for key in keys}
    if numbers := [values.pop(name) for name in NUMERIC if name in values]:
        values["dense_arch.weight"] = torch.cat(numbers, dim=1).T
    if case.startswith("dlrm"):
        weight = values["over_arch.0.weight"]
        values["over_arch.0.weight"] = weight[:, torch.tensor(list(order("dot" in case)))]
    return values


def order(dot: bool) -> Iterator[int]:
    """For each of our inputs of over_arch the place of theirs; vector 4 is the dense one there, 0 here."""
    if not dot:
        yield from range(4 * DIM, 5 * DIM)
        yield from range(4 * DIM)
        return
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    yield from range(len(pairs), len(pairs) + DIM)
    for i, j in pairs:  # of ours, whose vector k is their k - 1
        yield pairs.index((j - 1, 4) if i == 0 else (i - 1, j - 1))


def is_before_norm(name: str, values: dict[str, Tensor]) -> bool:
    """Whether a bias has no true gradient, since a batch norm follows: Adam makes steps of its rounding."""
    stack, _, kind = name.rpartition(".")
    parent, _, number = stack.rpartition(".")
    return kind == "bias" and number.isdigit() and f"{parent}.{int(number) + 1}.0.running_mean" in values


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_are_those_of_fuxictr(case: str, runtime: Runtime, rows: Path) -> None:
    overrides = [*SMALL, *OPTIMIZER, f"optimizer.sparse_weight_decay={L2.get(case, 0.05)}", *CASES[case]]
    overrides += ["run.name=x", f"data.path={rows}", f"train.global_batch_size={BATCH}"]
    overrides += [f"model.embedding_dim={DIM}"] * (case != "lr")
    config = composed(*overrides)
    this = session.build(config, runtime, rows, load_manifest(rows))
    places: dict[str, Tensor] = {name.removeprefix("t_"): weight for name, weight in table_weights(this.model)}
    places |= {**this.dense_parameters(), **this.model.module.statistics()}
    initial, final = recorded(case, "initial"), recorded(case, "final")
    assert set(places) == set(initial)
    for name, place in places.items():
        place.data.copy_(initial[name])
    for step, (dense, ids, labels) in enumerate(batches()):
        features = layout_of(CATEGORIES, [np.ones(BATCH, np.int64)] * 4).bags(torch.from_numpy(ids.T.reshape(-1)).int())
        this.begin_step(step)
        this.optimizer.zero_grad()
        logits = this.model(torch.from_numpy(dense), features)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels))
        loss.backward()
        this.optimizer.step()
        assert loss.item() == pytest.approx(GOLDEN[f"{case}/losses"][step], abs=1e-6), f"step {step}"
    for name, place in places.items():
        if is_before_norm(name, final) or "running_mean" in name:  # of which those biases are a part
            continue
        np.testing.assert_allclose(place.detach().numpy(), final[name].numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
