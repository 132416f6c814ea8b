"""Kinds of models: DLRM, which the core's own modules make, and those that extensions add, a row each."""

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
    """What an extension does for its model where the core's modules do it for DLRM.

    Attributes:
        tables: the model's tables, on the meta device.
        model: the model around its tables.
        open_splits: a dataset's splits as a run reads them.
        bag_sizes: mean ids a bag by key of the model's ids.
        tasks: names of the labels that are learned beside the dataset's label.
        loss_factor: what the mean loss over samples and tasks is multiplied by.
        require_device: raises UserError where the model cannot be computed on this type of device.
        require_labels: raises UserError where nothing can be learned of a training split's labels.
        group_metrics: metrics of groups, of logits, labels [n] and ids of groups [n].
        rank: scores candidates for app.recommend, of its configuration, the run's, the run and the process.
        plan_notes: what a plan's forecast assumes and leaves out, of tables, bag sizes and samples a device.
        mlperf_values: what MLPerf's rules log of a run, of mlperf-logging's constants.
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
    plan_notes: Callable[[AppConfig, Any, Mapping[str, float], int], list[str]]
    mlperf_values: Callable[[Any, AppConfig, int], dict[str, Any]]


@dataclass(frozen=True)
class ModelKind:
    """What is known of a kind of model before torch is imported.

    Attributes:
        name: the value of model.name.
        label: its name in messages.
        learns_from: the datasets that it learns from.
        parts: imports its modules and returns what they do; None: the core's modules, for DLRM.
        instead_of_source: what to give for a source of another kind; empty: the model that learns from it.
        instead_of_sizes: what to give app.plan where it has no sizes of tables.
        group_feature: the feature whose ids are the groups of evaluations; empty: eval.group_by names it.
        over: what such metrics are a mean over, without eval.group_by.
        eval_split: that app.evaluate takes where none is given.
        has_blocks: MLPerf's rules have blocks between evaluations, not epochs.
        commands: those alone that know it; empty: all do, with all their keys.
    """

    name: str
    label: str
    learns_from: DatasetKind
    parts: Callable[[], ModelParts] | None
    instead_of_sizes: str
    instead_of_source: str = ""
    group_feature: str = ""
    over: str = ""
    eval_split: str = "test"
    has_blocks: bool = False
    commands: str = ""


DLRM = ModelKind(
    "dlrm",
    "DLRM",
    ROWS,
    parts=None,
    instead_of_sizes="rows of each table, such as [1000,7], or mlperf_v2",
)


def model_kinds() -> dict[str, ModelKind]:
    """DLRM and the extensions' kinds, by the value of model.name."""
    return {kind.name: kind for kind in (DLRM, *rows_of_extensions(ModelKind))}


def require_dataset(model: ModelKind, root: Path, manifest: Manifest) -> None:
    """Raises UserError for a dataset that the model does not learn from."""
    other = model_for(manifest.kind)
    manifest.require_kind(root, model.learns_from, f"give {other}" if other and model is DLRM else "")


def model_for(data: DatasetKind) -> str:
    """What chooses the model that learns from such a dataset; empty: there is none."""
    return next((f"model={kind.name}" for kind in model_kinds().values() if kind.learns_from is data), "")
