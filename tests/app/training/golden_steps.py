"""The reference's twenty steps of training, as Clickwork trains them.

`python -m tests.app.training.golden_steps FILE.npz` does so on the GPU and writes what came of each case.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec import KeyedJaggedTensor

from app.config.train import Platform, RuntimeConfig
from app.data.batch import Batch
from app.runtime import platform
from app.runtime.platform import Runtime
from app.sharding.plan import fill_tables, table_blocks, table_weights
from app.training import session
from data_prep.dataset.format import Manifest
from tests.app import loops
from tests.app.conftest import composed

GOLDEN = Path(__file__).parents[2] / "golden/reference"
FEATURES = [f"cat_{i}" for i in range(26)]
STEPS, BATCH = 20, 16

CASES = {
    "sgd": ("sgd", 0.1, "dot", False),
    "adagrad": ("adagrad", 0.05, "dot", False),
    "rwsadagrad": ("rowwise_adagrad", 0.05, "dot", False),
    "itself_sgd": ("sgd", 0.1, "dot", True),
    "cat_sgd": ("sgd", 0.1, "cat", False),
    "multihot_sgd": ("sgd", 0.1, "dot", False),
}


def train_case(case: str, runtime: Runtime) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    """The loss of each step, and the final parameters by the reference's names."""
    golden = np.load(GOLDEN / f"dlrm_small_{case}.npz")
    algorithm, lr, interaction, itself = CASES[case]
    model = ["model.embedding_dim=4", "model.dense_arch=[8,4]", "model.over_arch=[8,1]", "train.log_every_steps=1"]
    model += [f"model.interaction={interaction}", f"model.interaction_itself={itself}"]
    optimizer = [f"optimizer={algorithm}", f"optimizer.lr={lr}", f"train.global_batch_size={BATCH}"]
    config = composed(*model, *optimizer, *["optimizer.eps=1e-10"] * (algorithm != "sgd"))
    this = session.build(config, runtime, Path("golden"), manifest())
    _set_initial(this, golden, columns_of(case))
    state, _ = loops.train(this, this.predictor.on_device(batches(golden)), STEPS, config.train)
    return np.concatenate(state.losses), _final_parameters(this)


def columns_of(case: str) -> NDArray[np.int64]:
    """The reference's column of the over_arch's input for each of ours."""
    _, _, interaction, itself = CASES[case]
    if interaction == "cat":
        return np.arange(108)
    # The reference goes by the lower triangle, we by the upper.
    reference_pairs = [(i, j) for i in range(27) for j in range(i + itself)]
    pairs = [(i, j) for i in range(27) for j in range(i if itself else i + 1, 27)]
    return np.array([*range(4), *(4 + reference_pairs.index((j, i)) for i, j in pairs)])


def _final_parameters(this: session.Session) -> dict[str, NDArray[np.float32]]:
    parameters = {key: parameter.detach().cpu().numpy() for key, parameter in _dense_parameters(this)}
    for name, weight in table_weights(this.model):
        whole = torch.cat([*table_blocks(weight)])
        parameters[f"emb_{name.removeprefix('t_cat_')}"] = whole.numpy()
    return parameters


def _dense_parameters(this: session.Session) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Dense parameters by the reference's names."""
    for arch, reference_name in (("dense_arch", "bot"), ("over_arch", "top")):
        for layer in (0, 1):
            linear: Any = getattr(this.model.module, arch)[layer]
            yield f"{reference_name}_{layer}_w", linear.weight
            yield f"{reference_name}_{layer}_b", linear.bias


def _set_initial(this: session.Session, golden: Any, order: NDArray[np.int64]) -> None:
    def rows(table: str, start: int, stop: int) -> NDArray[np.float32]:
        return golden[f"init_emb_{table.removeprefix('t_cat_')}"][start:stop]

    fill_tables(this.model, rows)
    with torch.no_grad():
        for key, parameter in _dense_parameters(this):
            values = golden[f"init_{key}"]
            parameter.copy_(torch.from_numpy(values[:, order] if key == "top_0_w" else values))


def manifest() -> Manifest:
    schema = {"label": "label", "dense": [f"int_{i}" for i in range(13)], "sparse": FEATURES}
    return Manifest(schema, {}, dict.fromkeys(FEATURES, 50), {}, [], 0, 0.0, "test")


def batches(golden: Any) -> Iterator[Batch]:
    offset = 0
    for step in range(STEPS):
        if "idx" in golden:
            lengths = np.ones((26, BATCH), dtype=np.int32)
            values = golden["idx"][step].T.reshape(-1)
        else:
            lengths = golden["lengths"][step].astype(np.int32)
            values = golden["values"][offset : offset + lengths.sum()]
            offset += int(lengths.sum())
        ids, bag_sizes = torch.from_numpy(values.astype(np.int32)), torch.from_numpy(lengths.reshape(-1))
        dense, labels = (torch.from_numpy(np.ascontiguousarray(golden[name][step])) for name in "XT")
        yield Batch(dense, KeyedJaggedTensor(keys=FEATURES, values=ids, lengths=bag_sizes), labels, BATCH)


def main() -> None:
    runtime = platform.start(RuntimeConfig(platform=Platform.cuda), seed=0, deterministic=True)
    arrays: dict[str, NDArray[np.float32]] = {}
    for case in CASES:
        losses, parameters = train_case(case, runtime)
        arrays[f"{case}/losses"] = losses
        arrays |= {f"{case}/{key}": values for key, values in parameters.items()}
    np.savez(sys.argv[1], **arrays)  # type: ignore[arg-type]
    platform.stop()


if __name__ == "__main__":
    main()
