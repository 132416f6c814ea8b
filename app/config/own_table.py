"""Rules of recipe=own_table: when a run takes it, and the values that follow from a table's rows and columns."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.kinds.optimizers import OptimizerName
from common.errors import UserError
from common.keys import shown
from data_prep.dataset.manifest import Manifest, load_manifest
from data_prep.dataset.options import LabelKind

RECIPE = "own_table"
STEPS_PER_EPOCH = 100  # at least, if the rows suffice for batches of LEAST_BATCH
LEAST_BATCH, LARGEST_BATCH = 32, 4096
DECAY, LARGEST_DECAY = 1600.0, 0.1  # optimizer.sparse_weight_decay times train's rows, and its maximum
LINEAR = 20.0  # model.linear of all columns together
MODEL = {"model.interaction": "dcn", "model.numeric": "vectors", "model.dense_arch": []}  # its other keys need these
FEW_NUMBERS = 3  # up to this number of dense columns, a small layer learns a function of each
MANY_PER_LABEL = 4  # values for each row of the rarer label
MANY_VALUES = 2_000_000  # from here on, moving all rows of all tables at every step would take most of the time


def table_values(manifest: Manifest) -> dict[str, Any]:
    """Return the values of the keys that depend on the table, by dotted key.

    The batch is a power of 2 that leaves STEPS_PER_EPOCH. Numbers need two hidden layers, as one learns few functions
    of them; a small layer does for FEW_NUMBERS, and where values are many beside the rows of the rarer label. L2 falls
    with the rows, as that of a prior does. Where numbers are more than categories, their functions are the model, and
    less restrained. Columns share LINEAR, so that a logit moves as far a step however many there are. Tables of
    MANY_VALUES are updated where a batch has their rows, without L2.
    """
    train = manifest.splits["train"]
    batch = 2 ** int(math.log2(max(1, min(max(LEAST_BATCH, train.rows / STEPS_PER_EPOCH), train.rows, LARGEST_BATCH))))
    num_values = sum(manifest.num_embeddings.values())
    rate = (train.label_rate or 0.0) if manifest.label_kind is LabelKind.click else 0.0
    rarer = train.rows * min(rate, 1 - rate)
    num_dense, num_sparse = len(manifest.schema["dense"]), len(manifest.num_embeddings)
    deep, dropout = ([128, 128], 0.5) if num_dense else ([64], 0.3)
    decay = min(LARGEST_DECAY, DECAY / max(1, train.rows))
    if num_dense > num_sparse:
        dropout, decay = 0.2, 0.01
    if 0 < num_dense <= FEW_NUMBERS or 0 < MANY_PER_LABEL * rarer <= num_values:
        deep, dropout = [16], 0.5
    values: dict[str, Any] = {
        "train.global_batch_size": batch,
        "model.deep_arch": deep,
        "model.dropout": [dropout],
        "model.linear": LINEAR / max(1, num_sparse),
        "optimizer.sparse_weight_decay": decay,
    }
    if rarer:
        values["model.initial_logit"] = math.log(rate / (1 - rate))
    if num_values >= MANY_VALUES:
        values |= {"optimizer.name": OptimizerName.adagrad.value, "optimizer.dense": OptimizerName.adam.value}
        values |= {"optimizer.sparse_lr": 0.01, "optimizer.sparse_weight_decay": 0.0}
    return values


def implied_recipe(composed: Any, given: Sequence[str]) -> dict[str, Any]:
    """Return recipe=own_table for a dataset of a user's own table, or its files, if no recipe is given."""
    if "recipe" in given or "published.recipe" in given or composed.published.recipe != "quickstart":
        return {}
    return {"recipe": RECIPE} if _is_of_own_table(composed) else {}


def implied_keys(composed: Any, given: Sequence[str]) -> dict[str, Any]:
    """Return the values that given keys imply: by_table lacks those keys, and steps replace epochs."""
    values: dict[str, Any] = {}
    if not composed.by_table:
        return values
    for key in [] if "model" in given else [key for key in MODEL if key in given]:
        value = getattr(composed.model, key.partition(".")[2])
        if shown(value) != shown(MODEL[key]):
            text = f"{key}={shown(value)}".replace(" ", "")
            raise UserError(
                f"{text}: not with the model of recipe=own_table; give another model too: model=dlrm {text}"
            )
    if "train.eval_every_steps" in given:
        values["train.eval_every_fraction"] = None
    left = [key for key in composed.by_table if not {key, key.partition(".")[0]} & {*given, *values}]
    return values if left == list(composed.by_table) else {**values, "by_table": left}


def _is_of_own_table(composed: Any) -> bool:
    data, root = composed.data, composed.data.path
    if composed.model.name != "dlrm" or root is None:
        return False
    if any(getattr(data, name) is not None for name in ("raw", "train")):
        return data.schema is not None
    try:
        manifest = load_manifest(Path(root))
    except UserError:  # a run says so later
        return False
    return is_own_table(manifest)


def is_own_table(manifest: Manifest) -> bool:
    """Return whether a dataset was made from a user's own table, by a schema."""
    return manifest.kind.name == "rows" and manifest.encoding.get("table") is not None
