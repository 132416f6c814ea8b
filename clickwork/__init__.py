"""Clickwork from Python: prepare, train, look at runs, and score tables. docs/python.md shows how.

To import it takes neither torch nor NumPy: what needs them imports them when it is called.
"""

from clickwork import own_packages

own_packages.require()

from clickwork.dataset import Dataset  # noqa: E402  (after the check)
from clickwork.errors import Error  # noqa: E402  (after the check)
from clickwork.predictor import Predictor, load  # noqa: E402

__all__ = ["Dataset", "Error", "Predictor", "load"]
