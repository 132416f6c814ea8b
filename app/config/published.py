"""`published`: what the source of a recipe reports and what the recipe promises; the report sets them beside a run."""

from dataclasses import dataclass

from app.config.checks import require_at_least, require_positive
from common.errors import UserError


@dataclass
class PublishedConfig:
    """Figures to hold a run against; null where there is none. They decide nothing in training.

    A run on other data is not held to them: the report compares only where `train_rows` agrees.
    """

    recipe: str | None = None  # the recipe's name
    source: str | None = None  # who published it, where and when, and which line or table of theirs
    data: str | None = None  # what it was measured on
    train_rows: int | None = None  # rows of its training split; null: comparable with a run on any data
    hardware: str | None = None  # what it was measured with, precision included
    auc: float | None = None
    logloss: float | None = None  # nats
    accuracy: float | None = None
    samples_per_second: float | None = None  # global, over all devices
    num_devices: int | None = None  # that samples_per_second is of
    parameters: int | None = None  # of the whole model
    tolerance: float | None = None  # largest absolute difference in auc, logloss and accuracy that counts as reproduced
    least_auc: float | None = None  # what the recipe itself promises on any machine


def validate_published(published: PublishedConfig) -> None:
    """Raises UserError for values that cannot be."""
    shares = {key: getattr(published, key) for key in ("auc", "accuracy", "least_auc", "tolerance")}
    for key, value in shares.items():
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"published.{key}={value}: must be in [0, 1]")
    require_at_least({f"published.{key}": (getattr(published, key), 1)
                      for key in ("train_rows", "num_devices", "parameters")})  # fmt: skip
    require_positive({f"published.{key}": getattr(published, key) for key in ("logloss", "samples_per_second")})
