"""The configuration of `python -m app.doctor`."""

from dataclasses import dataclass


@dataclass
class DoctorConfig:
    """Where to look, and how to tell."""

    data_path: str | None = None  # dataset to look at; null: the default one, if it is there
    runs: str = "runs"  # directory of the runs
    json: bool = False  # print JSON instead of lines
    out: str | None = None  # also write the JSON to this file
