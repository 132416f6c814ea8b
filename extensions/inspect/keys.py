"""Keys of `python -m data_prep.inspect`."""

from dataclasses import dataclass, field
from typing import Any

from common.keys import MISSING, key


@dataclass(frozen=True)
class InspectedData:
    """The table to inspect."""

    raw: Any = key(MISSING, "path, glob or directory of files of your own table, or a list of these", example="ads.csv")
    label: str | None = key(
        None,
        "column of the labels, or a rule such as rating >= 4; null: the column named label, click, clicked, target, y "
        "or rating",
    )


@dataclass(frozen=True)
class InspectConfig:
    """Configuration of `python -m data_prep.inspect`."""

    data: InspectedData = field(default_factory=InspectedData)
    out: str = key("inspect", "directory of the page, NAME.html")
