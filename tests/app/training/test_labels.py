"""Labels of one class are not trained on, unless the user means it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.config import DataConfig
from app.config.data import EventConfig, NegativesConfig
from app.data.events import EventLog, EventSplit
from app.training.labels import refuse_events_of_one_class, refuse_one_class
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.pipeline import preprocess
from tests.data_prep import oracle
from tests.data_prep.conftest import config


def test_a_train_split_of_one_class_is_refused(tmp_path: Path) -> None:
    lines = oracle.make_rows(60, seed=1).decode().splitlines(keepends=True)
    (tmp_path / "day_0").write_text("".join(f"{int(row >= 52)}{line[1:]}" for row, line in enumerate(lines)))
    manifest = preprocess(config(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/out"))
    assert manifest.splits["train"].label_rate == 0
    with pytest.raises(UserError, match=r"every label of train is 0, so no model.*or give data.allow_degenerate=true"):
        refuse_one_class(DataConfig(), tmp_path, manifest)
    refuse_one_class(DataConfig(allow_degenerate=True), tmp_path, manifest)
    refuse_one_class(DataConfig(negatives=NegativesConfig(per_positive=1)), tmp_path, manifest)
    splits = manifest.splits | {"train": replace(manifest.splits["train"], label_rate=0.5)}
    refuse_one_class(DataConfig(), tmp_path, replace(manifest, splits=splits))


def event_split(directory: Path, tasks: list[str], **keys: Any) -> tuple[DataConfig, EventSplit]:
    """A configuration and the train split of a log of three windows, in which only views and buys are samples."""
    kinds = ["view", "buy", "like", "view"] * 3
    rows = "".join(f"1,{i % 5},{1000 * i},{kind}\n" for i, kind in enumerate(kinds))
    (directory / "log.csv").write_text(f"user,item,time,event\n{rows}")
    (directory / "log.yaml").write_text(
        "user: user\nitem: item\ntime: time\nlabel: bought\nanchors: {event: [view, buy]}\nwindow_seconds: 4000\n"
        "actions: {bought: {event: buy}, seen: {event: view}, liked: {event: like}}\n"
    )
    paths = [f"data.raw={directory}/log.csv", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    preprocess(config("data=events", *paths))
    data = DataConfig(events=EventConfig(tasks=tasks), **keys)
    return data, EventLog(directory / "out", load_manifest(directory / "out"), data).split("train", 0, 1)


def test_samples_of_one_class_are_refused(tmp_path: Path) -> None:
    """A task that none of the samples before the evaluated window has."""
    data, split = event_split(tmp_path, ["seen"])
    refuse_events_of_one_class(data, tmp_path, split)
    assert split.positives == {"bought": 2, "seen": 4, "liked": 0}
    data, split = event_split(tmp_path, ["seen", "liked"])
    message = (
        r"data\.events\.tasks=\[seen,liked\]: none of the 6 samples to train on is liked, "
        r".*: bought \(2\), seen \(4\), liked \(0\); leave liked out, .* or set data\.allow_degenerate=true"
    )
    with pytest.raises(UserError, match=message):
        refuse_events_of_one_class(data, tmp_path, split)
    data, split = event_split(tmp_path, ["liked"], allow_degenerate=True)
    refuse_events_of_one_class(data, tmp_path, split)
