"""Samples of one class are not trained on, unless the user means it."""

from pathlib import Path

from app.config import AppConfig
from data_prep.dataset.format import load_manifest
from extensions.sequences.event_log import EventSplit, open_log
from extensions.sequences.labels import refuse_one_class
from tests.app.conftest import composed
from tests.data_prep.conftest import prepare, refused


def event_split(directory: Path, tasks: list[str], *keys: str) -> tuple[AppConfig, EventSplit]:
    """A configuration and the train split of a log of three windows, in which only views and buys are samples."""
    kinds = ["view", "buy", "like", "view"] * 3
    rows = "".join(f"1,{i % 5},{1000 * i},{kind}\n" for i, kind in enumerate(kinds))
    (directory / "log.csv").write_text(f"user,item,time,event\n{rows}")
    (directory / "log.yaml").write_text(
        "user: user\nitem: item\ntime: time\nlabel: bought\nanchors: {event: [view, buy]}\nwindow_seconds: 4000\n"
        "actions: {bought: {event: buy}, seen: {event: view}, liked: {event: like}}\n"
    )
    paths = [f"data.raw={directory}/log.csv", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
    prepare(*paths)
    overrides = ["model=hstu", f"sequences.tasks={tasks}", *keys]
    app_config = composed(*overrides)
    return app_config, open_log(directory / "out", load_manifest(directory / "out"), app_config).split("train", 0, 1)


def test_samples_of_one_class_are_refused(tmp_path: Path) -> None:
    """A task that none of the samples before the evaluated window has."""
    run_config, split = event_split(tmp_path, ["seen"])
    refuse_one_class(run_config, tmp_path, split)
    assert split.positives == {"bought": 2, "seen": 4, "liked": 0}
    run_config, split = event_split(tmp_path, ["seen", "liked"])
    message = (
        r"sequences\.tasks=\[seen,liked\]: none of the 6 samples to train on is liked, "
        r".*: bought \(2\), seen \(4\), liked \(0\); leave liked out, .* or set data\.allow_degenerate=true"
    )
    refused(message, refuse_one_class, run_config, tmp_path, split)
    run_config, split = event_split(tmp_path, ["liked"], "data.allow_degenerate=true")
    refuse_one_class(run_config, tmp_path, split)
