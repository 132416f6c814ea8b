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


sys.meta_path.insert(0, _WithoutPandas())  # which pyarrow would import now, for longer than a file of 10 MB is read
pa.array([])
del sys.meta_path[0]

from data_prep.parsing import convert, parquet, text  # noqa: E402, F401
