"""What the server that forks workers loads, too, where they read files of a user's own: pyarrow and the readers."""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _WithoutPandas(MetaPathFinder):
    """Refuses the import of pandas."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """See `MetaPathFinder`."""
        if fullname == "pandas":
            raise ImportError("pandas is left out")


_finder = _WithoutPandas()
sys.meta_path.insert(0, _finder)
try:
    pa.array([])  # would import pandas, for longer than a file of 10 MB is read
finally:
    sys.meta_path.remove(_finder)

from data_prep.parsing import convert, parquet, text  # noqa: E402, F401
