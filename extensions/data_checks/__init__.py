"""Checks for misleading data: columns that hold the label, and rows that are both in train and in val or test.

See docs/truth.md.
"""

from common.extensions import Core, later
from data_prep.dataset.kinds import DataCheck

SEARCH = "extensions.data_checks.search"


def register(core: Core) -> None:
    """Add the check."""
    core.add(DataCheck("misleading", later(f"{SEARCH}:find_misleading"), later(f"{SEARCH}:misleading_sentences")))
