"""The limits of the keys of `python -m app.export`."""

from extensions.export.keys import ExportConfig
from tests.common.test_keys import OF_RUNTIME
from tests.key_limits import TOLERANCE, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ExportConfig, {**OF_RUNTIME, "tolerance": TOLERANCE})
