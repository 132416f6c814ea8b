"""Files that appear whole: written beside their place under a name of this process and thread, then moved."""

import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def temporary_path(path: Path) -> Path:
    """A name beside `path` that no other process, thread or machine uses."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.part")


def save_array(path: Path, array: NDArray[Any]) -> None:
    """`np.save`, so that the file is there whole or not at all."""
    temporary = temporary_path(path)
    with open(temporary, "wb") as file:
        np.save(file, array)
    temporary.replace(path)
