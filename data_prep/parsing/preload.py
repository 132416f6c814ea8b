"""Modules that the fork server loads before it forks workers for a user's own files: pyarrow and the readers."""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _WithoutPandas(MetaPathFinder):
    """Import hook that refuses pandas."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ImportError for pandas."""
        if fullname == "pandas":
            raise ImportError("pandas is left out")


_finder = _WithoutPandas()
sys.meta_path.insert(0, _finder)
try:
    pa.array([])  # would import pandas, which takes longer than reading a file of 10 MB
finally:
    sys.meta_path.remove(_finder)

from data_prep.parsing import convert, parquet, text  # noqa: E402, F401
