"""`record`: views of a run for other tools."""

from dataclasses import dataclass
from typing import ClassVar

from common.keys import key


@dataclass(frozen=True)
class RecordConfig:
    """Views of a run for other tools; its own files are always written."""

    decides_bits: ClassVar[bool] = False

    tensorboard: bool = key(True, "events in the run's tensorboard/, if the tensorboard package is here")
