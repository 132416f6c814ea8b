"""Clickwork from Python: prepare, train, look at runs, and score tables. docs/python.md shows how.

To import it takes neither torch nor NumPy: what needs them imports them when it is called.
"""

from clickwork import own_packages

own_packages.require_own_packages()

# After the check, which imports nothing of them.
from clickwork.dataset import Dataset  # noqa: E402
from clickwork.errors import Error  # noqa: E402
from clickwork.predictor import Predictor, load  # noqa: E402
from clickwork.run import (  # noqa: E402
    Comparison,
    Run,
    compare,
    prepare,
    train,
)

__all__ = ["Comparison", "Dataset", "Error", "Predictor", "Run", "compare", "load", "prepare", "train"]
