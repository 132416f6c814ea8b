"""A changed byte of a dataset of events is found."""

from pathlib import Path

from tests.data_prep.test_verify import change_bytes
from tests.extensions.sequences.event_logs import write_reference_log


def test_one_changed_byte_of_any_file(tmp_path: Path) -> None:
    change_bytes(write_reference_log(tmp_path), tmp_path / "out", encodes=False)
