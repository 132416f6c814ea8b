"""The packages beside this one, which packages of the same names elsewhere may hide."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("app", "common", "data_prep", "extensions")


def require_own_packages() -> None:
    """Raise ImportError if Python imports one of them, or has imported it, from elsewhere."""
    for own in (ROOT / name for name in BESIDE if (ROOT / name).is_dir()):
        spec = importlib.util.find_spec(own.name)
        places = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
        if str(own) not in (str(Path(place).resolve()) for place in places):
            other = places[0] if places else "nothing of this name on sys.path"
            raise ImportError(
                f"clickwork: {other} stands before {own}; rename it, or start Python in another directory"
            )
