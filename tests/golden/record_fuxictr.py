"""Ten steps of FuxiCTR's own models, recorded in fuxictr.npz: what tests/app/training/test_golden.py compares with.

    python tests/golden/record_fuxictr.py CHECKOUT    # of reczoo/FuxiCTR (recorded at 0245987, 2.3.10), beside torch

Its model_zoo's DLRM, DCNv2, DNN and LR with its L2, clipping and Adam, on fixed batches; initial and final values are
recorded under our names of parameters.
"""

import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).with_name("fuxictr.npz")
NUMBERS, VOCABULARY, DIM, BATCH, STEPS = 3, [5, 9, 14, 4], 6, 32, 10
CATEGORIES = [f"cat_{i}" for i in range(len(VOCABULARY))]
NUMERIC = [f"int_{i}" for i in range(NUMBERS)]
L2 = "embedding_regularizer"
STACKS: dict[str, Any] = {L2: 0.05, "bottom_mlp_units": [8, 7], "top_mlp_units": [9, 8]}
PARALLEL: dict[str, Any] = {"parallel_dnn_hidden_units": [9, 8], "num_cross_layers": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dcnv2": ("DCNv2", {L2: 0.05, "model_structure": "parallel", **PARALLEL}),
    "crossnetv2": ("DCNv2", {L2: 0.01, "model_structure": "crossnet_only", "num_cross_layers": 3}),
    "dnn": ("DNN", {L2: 0.05, "hidden_units": [9, 8]}),
    "lr": ("LR", {"regularizer": 0.02}),
}
for operation in ("dot", "cat"):
    for norm in (False, True):
        settings = {"interaction_op": operation, "batch_norm": norm, **STACKS}
        CASES[f"dlrm_{operation}{'_bn' * norm}"] = ("DLRM", settings)


def import_model(checkout: Path, name: str) -> Any:
    """A class of the repository's model_zoo; a stand-in for Ray, which its loaders alone need."""
    for module in ("ray", "ray.data"):
        sys.modules.setdefault(module, types.ModuleType(module))
    sys.path.insert(0, str(checkout))
    source = next(path for path in (checkout / "model_zoo" / name).rglob(f"src/{name}.py") if "_tf" not in str(path))
    namespace: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    return namespace[name]


def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Numbers [B, 3], ids [B, 4] and labels [B] of each step."""
    draw = np.random.default_rng(7)
    for _ in range(STEPS):
        ids = np.stack([draw.integers(1, size, BATCH) for size in VOCABULARY], axis=1)
        yield draw.normal(size=(BATCH, NUMBERS)).astype(np.float32), ids, draw.integers(0, 2, BATCH).astype(np.float32)


def our_name(case: str, name: str) -> str:
    """Our name of a parameter of theirs."""
    parts = name.split(".")
    if "embedding_layers" in parts:
        return parts[parts.index("embedding_layers") + 1]
    if case == "lr":
        return "over_arch.bias"
    if "crossnet" in parts:
        return f"interaction.crossnet.layers.{parts[2]}.{parts[-1]}"
    if parts[0] == "fc":
        return f"over_arch.0.{parts[-1]}"
    stacks = {"bottom_mlp": "dense_arch", "top_mlp": "over_arch", "mlp": "over_arch"}
    return ".".join([stacks.get(parts[0], "interaction.deep_arch"), *parts[2:]])


def renumbered(names: list[str], model: Any) -> dict[str, str]:
    """Layers of a perceptron by our numbers: 2 i for the i-th product, 2 i + 1.0 for the batch norm after it."""
    layer_names = {}
    for name in names:
        prefix, _, kind = name.rpartition(".")
        stack, _, number = prefix.rpartition(".")
        if not stack.endswith("mlp") or not number.isdigit():
            layer_names[name] = name
            continue
        layers = model.get_submodule(stack)
        before = sum(isinstance(layer, torch.nn.Linear) for layer in list(layers)[: int(number)])
        is_norm = isinstance(layers[int(number)], torch.nn.BatchNorm1d)
        layer_names[name] = f"{stack}.{f'{2 * before - 1}.0' if is_norm else 2 * before}.{kind}"
    return layer_names


def record(checkout: Path, case: str) -> dict[str, np.ndarray]:
    """Initial values, losses without L2 and final values of a case."""
    name, settings = CASES[case]
    make = import_model(checkout, name)
    from fuxictr.features import FeatureMap

    torch.manual_seed(3)
    features = FeatureMap("golden", ".")
    numeric = {name: {"source": "", "type": "numeric"} for name in NUMERIC}
    categorical = {
        name: {"source": "", "type": "categorical", "vocab_size": size, "padding_idx": 0}
        for name, size in zip(CATEGORIES, VOCABULARY, strict=True)
    }
    features.features, features.labels = OrderedDict({**numeric, **categorical}), ["label"]
    features.num_fields, features.default_emb_dim = len(features.features), DIM
    features.set_column_index()
    training = {"learning_rate": 0.01, "optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["AUC"]}
    model = make(features, gpu=-1, embedding_dim=DIM, verbose=0, model_root=".", **training, **settings)
    for parameter in model.parameters():  # not nearly 0, so that every part of the model matters
        if parameter.requires_grad and parameter.dim() > 1 and parameter.abs().max() < 1e-2:
            torch.nn.init.normal_(parameter, std=0.1)
    model._max_gradient_norm = 0.7
    model.train()
    losses: list[float] = []
    add_loss = model.add_loss

    def noted(*arguments: Any) -> Any:
        loss = add_loss(*arguments)
        losses.append(loss.item())
        return loss

    model.add_loss = noted
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    names += [name for name, _ in model.named_buffers() if ".running_" in name]
    our_names = {key: our_name(case, value) for key, value in renumbered(names, model).items()}

    def values(stage: str) -> dict[str, np.ndarray]:
        state, arrays = model.state_dict(), {}
        for fuxictr_name, parameter_name in our_names.items():
            arrays[f"{case}/{stage}/{parameter_name}"] = state[fuxictr_name].detach().clone().numpy()
        return arrays

    recorded = values("initial")
    for dense, ids, labels in batches():
        inputs = {name: torch.from_numpy(column[:, None]) for name, column in zip(NUMERIC, dense.T, strict=True)}
        inputs |= {name: torch.from_numpy(column) for name, column in zip(CATEGORIES, ids.T, strict=True)}
        model.train_step({**inputs, "label": torch.from_numpy(labels)})
    return {**recorded, f"{case}/losses": np.array(losses), **values("final")}


if __name__ == "__main__":
    arrays: dict[str, np.ndarray] = {}
    for each in CASES:
        arrays |= record(Path(sys.argv[1]), each)
    np.savez_compressed(OUT, allow_pickle=False, **arrays)
    print(OUT, len(arrays), OUT.stat().st_size)
