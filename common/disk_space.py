"""Checks of disk space before anything is written."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.sizes import in_words


@dataclass(frozen=True)
class Need:
    """Bytes needed at a path, which need not exist. `what`: purpose, such as "to fetch"; `about`: an estimate."""

    path: Path
    bytes: int
    what: str
    about: bool = False

    def __str__(self) -> str:
        return f"{'about ' if self.about else ''}{in_words(self.bytes)}"


def require_room(needs: Sequence[Need], remedy: str = "free some, or choose another place") -> None:
    """Raise UserError for needs that do not fit; needs on one file system are added up."""
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(_existing(need.path).stat().st_dev, []).append(need)
    for together in by_device.values():
        path, num_bytes = together[0].path, sum(need.bytes for need in together)
        free = shutil.disk_usage(_existing(path)).free
        if num_bytes > free:
            if len(together) == 1:
                text = f"{together[0]} needed {together[0].what}"
            else:
                total = Need(path, num_bytes, "", any(need.about for need in together))
                text = f"{total} needed ({', '.join(f'{need} {need.what}' for need in together)})"
            raise UserError(f"{path}: {text}, {in_words(free)} free; {remedy}")


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
