"""Choices, data and commands that HSTU and a log of events refuse; preparation where a dataset of events exists."""

import json
import re
from pathlib import Path

import pytest

import clickwork
from app.config.app_config import AppConfig, validate_new_run
from common.keys import check, to_plain
from data_prep.dataset.format import load_manifest
from data_prep.dataset.options import DataSource
from extensions.sequences.event_log import EventSplit, open_log, refuse_one_class
from tests.app.conftest import composed
from tests.app.data.test_prepare import agreed
from tests.changed import changed
from tests.data_prep.conftest import prepare
from tests.data_prep.test_refusals import ANOTHER, FOREIGN, files, set_up
from tests.error_lines import refused
from tests.once import made_once

GENERATED = "data.source=synthetic_events data.synthetic_events.users=20 data.synthetic_events.days=3"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.monitor=hr_at_10"], "train.monitor=hr_at_10: hr_at_10 is over groups of rows; use gauc"),
        (["eval.group_by=item"], "model=hstu: eval.group_by=item is for DLRM alone so far"),
        (["runtime.compile=dense"], "model=hstu: runtime.compile=dense is for DLRM alone so far"),
        (["train.drop_last=false"], "model=hstu: train.drop_last=false is for DLRM alone so far"),
        (
            ["data.negatives.per_positive=3", "data.negatives.user=user", "data.negatives.item=item"],
            "model=hstu: data.negatives.per_positive=3 is for DLRM alone so far",
        ),
    ],
)
def test_what_only_dlrm_can_do_is_refused(overrides: list[str], message: str) -> None:
    config = composed("model=hstu", "data.path=none", *overrides, "run.name=x")
    refused(f"^{re.escape(message)}", validate_new_run, config)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files of tests/data_prep/test_refusals.py and the dataset `events`."""

    def make(directory: Path) -> None:
        set_up(directory)
        prepare(*GENERATED.split(), f"data.path={directory}/events")

    return made_once(tmp_path_factory, "refusals_of_events", make)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("data.source=synthetic_events data.raw=x.csv", "data.raw: has no effect with data.source=synthetic_events"),
        (
            "data.source=synthetic_events data.synthetic.rows=5",
            "data.synthetic.rows=5: has no effect without data.source=synthetic; leave it out",
        ),
        ("data.source=synthetic_events data.synthetic_events.days=1", "data.synthetic_events.days=1: must be"),
        (f"data.path=foreign {GENERATED}", FOREIGN),
        (f"data.path=out {GENERATED}", ANOTHER),
        (f"data.path=events {GENERATED} data.synthetic_events.seed=4", r"synthetic_events\.seed is 0 there, 4 here"),
    ],
)
def test_a_refusal_leaves_files_as_they_were(
    state: Path, monkeypatch: pytest.MonkeyPatch, keys: str, message: str
) -> None:
    monkeypatch.chdir(state)
    usual = [] if "data.path=" in keys else ["data.path=new"]
    before = files(state)
    refused(message, prepare, *usual, *keys.split())
    assert files(state) == before


def test_files_of_splits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "events.yaml").write_text("user: user\nitem: item\ntime: time\nactions: {click: {label: 1}}\n")
    (tmp_path / "log.csv").write_text("user,item,time,label\n1,2,3,1\n")
    keys = [f"data.train={tmp_path}/log.csv", f"data.schema={tmp_path}/events.yaml", f"data.path={tmp_path}/out"]
    refused(r"data\.train: a log of events is split by time", prepare, *keys)


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


def test_a_run_of_hstu_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(to_plain(composed("model=hstu", "run.name=x"))))
    message = r"a model of HSTU, which scores no single rows; use python -m app\.recom"
    with pytest.raises(clickwork.Error, match=message):
        clickwork.load(tmp_path)


def test_a_run_of_events_records_what_commands_can_read(tmp_path: Path) -> None:
    prepare(*GENERATED.split(), f"data.path={tmp_path}/out")
    config = agreed(tmp_path / "out")
    assert (config.encoding, vars(config)["synthetic_events"].users) == (None, 20)
    check(changed(config, {"source": DataSource.synthetic_events}))
    message = r"data\.synthetic_events\.users=30: the dataset at .* was made with 20"
    refused(message, agreed, tmp_path / "out", synthetic_events__users=30)
