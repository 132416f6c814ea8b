"""A dataset of events that is there, and the keys given beside it."""

from pathlib import Path

import pytest

from app.config.data import validate_data
from common.compose import compose_config
from common.errors import UserError
from data_prep.config.compose import CONFIG_DIRECTORY
from data_prep.config.keys import PrepConfig
from data_prep.dataset.options import DataSource
from data_prep.pipeline import preprocess
from tests.app.data.test_existing_data import agreed
from tests.changed import changed


def test_a_run_of_events_records_what_commands_can_read(tmp_path: Path) -> None:
    overrides = ["data.source=synthetic_events", "data.synthetic_events.users=20", "data.synthetic_events.days=3"]
    preprocess(compose_config(PrepConfig, CONFIG_DIRECTORY, [*overrides, f"data.path={tmp_path}/out"]).data)
    config = agreed(tmp_path / "out")
    assert (config.encoding, vars(config)["synthetic_events"].users) == (None, 20)
    validate_data(changed(config, {"source": DataSource.synthetic_events}))
    with pytest.raises(UserError, match=r"data\.synthetic_events\.users=30: the dataset at .* was made with 20"):
        agreed(tmp_path / "out", synthetic_events__users=30)
