"""What HSTU and a log of events refuse beside other choices."""

from pathlib import Path

import pytest

from app.config import validate_new_run
from common.errors import UserError
from tests.app.conftest import composed
from tests.data_prep.conftest import prepare, refused
from tests.data_prep.test_refusals import ANOTHER, FOREIGN, files, set_up
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
    keys = ["model=hstu", "data.path=none", *overrides, "run.name=x"]
    with pytest.raises(UserError) as error:
        validate_new_run(composed(*keys))
    assert str(error.value).startswith(message)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests/data_prep/test_refusals.py has, and the dataset `events`."""

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
