"""Kinds of models: DLRM, which the core builds, and one row for each model that an extension adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.extensions import rows_of_extensions
from data_prep.dataset.kinds import ROWS, DatasetKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from app.config import AppConfig
    from app.data.split import Split, Splits
    from app.model.embeddings import TableArch
    from app.model.tables import Features
    from app.runtime.platform import Runtime
    from app.scoring.ranking import Scored
    from app.training.resume import TrainedRun
    from data_prep.dataset.format import Manifest


class ModelParts(NamedTuple):
    """Functions by which an extension replaces the core's code for DLRM.

    Attributes:
        tables: builds the embedding tables on the meta device.
        model: builds the model around its tables.
        open_splits: opens a dataset's splits for a run.
        bag_sizes: returns the mean number of ids per bag, by key of the model's ids.
        tasks: returns the names of the labels that the model learns besides the dataset's label.
        loss_factor: returns the factor of the mean loss over samples and tasks.
        require_device: raises UserError if the model does not run on this type of device.
        require_labels: raises UserError if the labels of a training split carry no information.
        group_metrics: computes metrics per group from logits [n], labels [n] and group ids [n].
        rank: scores candidates for app.recommend; takes its configuration, the run's, the run and the process.
    """

    tables: Callable[[AppConfig, Features], TableArch]
    model: Callable[[AppConfig, Any, Features], nn.Module]
    open_splits: Callable[[Path, Manifest, AppConfig], Splits]
    bag_sizes: Callable[[AppConfig, Features], dict[str, float]]
    tasks: Callable[[AppConfig], list[str]]
    loss_factor: Callable[[AppConfig], float]
    require_device: Callable[[AppConfig, str], None]
    require_labels: Callable[[AppConfig, Path, Split], None]
    group_metrics: Callable[
        [NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]], Mapping[str, float | int | None]
    ]
    rank: Callable[[Any, AppConfig, TrainedRun, Runtime], Scored]


@dataclass(frozen=True)
class ModelKind:
    """Properties of a kind of model that need no torch.

    Attributes:
        name: the value of model.name.
        label: its name in messages.
        learns_from: the kind of dataset that it learns from.
        parts: imports the extension's modules and returns their functions; None for DLRM.
        instead_of_source: remedy for a source of another kind; empty: the model that learns from that source.
        group_feature: the feature whose ids group the evaluation's samples; empty: eval.group_by names it.
        over: the unit of the mean of group metrics, if eval.group_by is not given.
        eval_split: default split of app.evaluate.
        commands: the commands that support this model; empty: all commands, with all their keys.
    """

    name: str
    label: str
    learns_from: DatasetKind
    parts: Callable[[], ModelParts] | None
    instead_of_source: str = ""
    group_feature: str = ""
    over: str = ""
    eval_split: str = "test"
    commands: str = ""


DLRM = ModelKind("dlrm", "DLRM", ROWS, parts=None)


def model_kinds() -> dict[str, ModelKind]:
    """Return DLRM and the kinds of the extensions, by the value of model.name."""
    return {kind.name: kind for kind in (DLRM, *rows_of_extensions(ModelKind))}


def require_dataset(model: ModelKind, root: Path, manifest: Manifest) -> None:
    """Raise UserError if the model does not learn from this kind of dataset."""
    other = model_for(manifest.kind)
    manifest.require_kind(root, model.learns_from, f"give {other}" if other and model is DLRM else "")


def model_for(data: DatasetKind) -> str:
    """Return the setting of the model that learns from such a dataset, or an empty string if no model does."""
    return next((f"model={kind.name}" for kind in model_kinds().values() if kind.learns_from is data), "")
