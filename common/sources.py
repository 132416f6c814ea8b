"""The modules of this project: their digest, and whether an image holds other ones than the checkout beside it."""

import functools
import hashlib
from pathlib import Path

DIRECTORIES = ("app", "common", "data_prep", "extensions")
ROOT = Path(__file__).parents[1]  # installed, in a checkout, or in an image
CHECKOUT = ROOT / "checkout"  # mounted into containers by docker-compose.yml


@functools.cache
def sources_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 over paths and contents of the modules below `root`; equal in checkout, image and wheel."""
    sha256 = hashlib.sha256()
    for directory in DIRECTORIES:
        for path in sorted((root / directory).rglob("*.py")):
            sha256.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            sha256.update(path.read_bytes())
    return sha256.hexdigest()


def outdated_sentence(root: Path = ROOT, checkout: Path = CHECKOUT) -> str | None:
    """Return the warning of an image with other modules than the checkout mounted into it; otherwise None."""
    try:
        if not any((checkout / "app").glob("*.py")) or sources_digest(checkout) == sources_digest(root):
            return None
    except OSError:  # this user may not read the checkout
        return None
    return (
        "this image holds other code than the checkout, which has changed since: `docker compose up --build`, "
        "`docker compose build` or `make up` takes the checkout's"
    )
