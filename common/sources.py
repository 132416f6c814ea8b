"""The modules of this project: their digest, and whether an image holds those of the checkout beside it."""

import functools
import hashlib
from pathlib import Path

DIRECTORIES = ("app", "common", "data_prep")
ROOT = Path(__file__).parents[1]  # installed, in a checkout, or in an image
CHECKOUT = ROOT / "checkout"  # docker-compose.yml mounts it into containers


@functools.cache
def sources_digest(root: Path = ROOT, directories: tuple[str, ...] = DIRECTORIES) -> str:
    """SHA-256 over paths and contents of the modules below `root`: the same in a checkout, an image and a wheel."""
    sha256 = hashlib.sha256()
    for directory in directories:
        for path in sorted((root / directory).rglob("*.py")):
            sha256.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            sha256.update(path.read_bytes())
    return sha256.hexdigest()


def outdated_sentence(root: Path = ROOT, checkout: Path = CHECKOUT) -> str | None:
    """Return the warning of an image with other modules than the checkout mounted into it; otherwise None."""
    # The image of data_prep has no modules of app.
    directories = tuple(name for name in DIRECTORIES if any((root / name).glob("*.py")))
    try:
        if not all(any((checkout / name).glob("*.py")) for name in directories):
            return None
        if sources_digest(checkout, directories) == sources_digest(root, directories):
            return None
    except OSError:  # this user may not read the checkout
        return None
    return (
        "this image holds other code than the checkout, which has changed since: `docker compose up --build`, "
        "`docker compose build` or `make up` takes the checkout's"
    )
