"""The stacks an environment can hold: packages, torch, and the modules that must import in the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# auto: a container's own GPU stack if it is complete, else cpu. oldest, newest: of the supported releases.
DEVICES = {
    "auto": "torch.in",
    "cpu": "torch.in",
    "oldest": "oldest.in",
    "newest": "newest.in",
    "cuda": None,
    "rocm": None,
}
PACKAGES = ("environment", "train", "data_prep")
PYTHONS = ((3, 10), (3, 14))  # the oldest that works, and the newest that was tried
MODULES = ("numpy", "torch", "fbgemm_gpu", "torchrec")


@dataclass(frozen=True)
class Stack:
    """`device`: a key of DEVICES. `packages`: one of PACKAGES (everything, what training needs, all but torch)."""

    device: str
    packages: str

    @property
    def has_torch(self) -> bool:
        """Whether the stack includes torch."""
        return self.packages != "data_prep"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules imported to check the environment."""
        return MODULES if self.has_torch else MODULES[:1]

    @property
    def lock(self) -> Path:
        """The lock of all packages except torch, by hash."""
        return HERE / f"{self.packages}.lock"

    @property
    def pins(self) -> list[str]:
        """The requirements installed after the lock's, torch last; empty if a container's torch is used."""
        name = DEVICES[self.device]
        return read_requirements(HERE / name) if name and self.has_torch else []

    def inputs(self) -> list[Path]:
        """Return the files that decide what the environment will hold."""
        names = [f"{self.packages}.in", DEVICES[self.device] or "torch.in"]
        return [self.lock, *(HERE / name for name in names)]

    def wanted(self) -> list[str]:
        """Return the requirements as written before locking."""
        return read_requirements(HERE / f"{self.packages}.in")


def read_requirements(path: Path) -> list[str]:
    """Return the requirements of a file and of those that it includes with -r, without comments."""
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        requirement = line.split("#")[0].strip()
        if included := re.fullmatch(r"-r\s+(\S+)", requirement):
            found += read_requirements(path.with_name(included[1]))
        elif requirement:
            found.append(requirement)
    return found
