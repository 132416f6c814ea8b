"""What an environment can be made of: the packages, the torch stack, and what must import in the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# auto: a container's own torch for a GPU if it is complete, else cpu. oldest: the oldest releases that are supported.
DEVICES = {"auto": "torch.in", "cpu": "torch.in", "oldest": "oldest.in", "cuda": None, "rocm": None}
PACKAGES = ("environment", "train", "data_prep")
MODULES = ("numpy", "torch", "fbgemm_gpu", "torchrec")


@dataclass(frozen=True)
class Stack:
    """`device`: a key of DEVICES. `packages`: one of PACKAGES (everything, what training needs, all but torch)."""

    device: str
    packages: str

    @property
    def has_torch(self) -> bool:
        """Whether torch belongs to it at all."""
        return self.packages != "data_prep"

    @property
    def modules(self) -> tuple[str, ...]:
        """What is imported to see that the environment works."""
        return MODULES if self.has_torch else MODULES[:1]

    @property
    def lock(self) -> Path:
        """Its packages but torch, by hash."""
        return HERE / f"{self.packages}.lock"

    @property
    def pins(self) -> list[str]:
        """The requirements that go over the lock's, torch last; empty where a container's torch is used."""
        name = DEVICES[self.device]
        return read_requirements(HERE / name) if name and self.has_torch else []

    def inputs(self) -> list[Path]:
        """The files that decide what an environment of it will hold."""
        names = [f"{self.packages}.in", DEVICES[self.device] or "torch.in"]
        return [self.lock, *(HERE / name for name in names)]

    def wanted(self) -> list[str]:
        """The requirements that were locked, as they were written."""
        return read_requirements(HERE / f"{self.packages}.in")


def read_requirements(path: Path) -> list[str]:
    """The requirements of a file and of those that it names with -r, without comments."""
    found: list[str] = []
    for line in path.read_text().splitlines():
        requirement = line.split("#")[0].strip()
        if included := re.fullmatch(r"-r\s+(\S+)", requirement):
            found += read_requirements(path.with_name(included[1]))
        elif requirement:
            found.append(requirement)
    return found
