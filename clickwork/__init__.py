"""Clickwork from Python: prepare, train, look at runs, and score tables. docs/python.md shows how.

To import it takes neither torch nor NumPy: what needs them imports them when it is called.
"""

import importlib.util
from pathlib import Path

BESIDE = ("app", "common", "data_prep", "extensions")


def _require_own_packages() -> None:
    """Raise ImportError if Python takes a package of BESIDE, whose names are common ones, from elsewhere."""
    root = Path(__file__).resolve().parents[1]
    for own in (root / name for name in BESIDE if (root / name).is_dir()):
        spec = importlib.util.find_spec(own.name)
        places = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
        if str(own) not in (str(Path(place).resolve()) for place in places):
            other = places[0] if places else "nothing of this name on sys.path"
            raise ImportError(
                f"clickwork: {other} stands before {own}; rename it, or start Python in another directory"
            )


_require_own_packages()

# After the check, which imports nothing of them.
from clickwork.dataset import Dataset  # noqa: E402
from clickwork.errors import Error  # noqa: E402
from clickwork.predictor import Predictor, load  # noqa: E402
from clickwork.run import Comparison, Run, compare, prepare, train  # noqa: E402

__all__ = ["Comparison", "Dataset", "Error", "Predictor", "Run", "compare", "load", "prepare", "train"]
