"""The digest of the modules, and the sentence of an image that holds others than the checkout mounted into it."""

import shutil
from pathlib import Path

import pytest

from common.cli import DIRECTORIES, ROOT, outdated_sentence, sources_digest


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for name in (name for name in DIRECTORIES if (ROOT / name).exists()):
        shutil.copytree(ROOT / name, tmp_path / "image" / name, ignore=shutil.ignore_patterns("*.yaml", "*.pyc"))
    return tmp_path / "image"


def edit(root: Path) -> None:
    with open(root / "common/errors.py", "a", encoding="utf-8") as file:
        file.write("\n")


def test_the_digest_is_of_the_modules_wherever_they_are(image: Path) -> None:
    assert sources_digest(image) == sources_digest(ROOT)
    edit(image)
    sources_digest.cache_clear()
    assert sources_digest(image) != sources_digest(ROOT)


def test_an_image_older_than_the_checkout_says_so(image: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    assert outdated_sentence(image, checkout) is None  # none is mounted
    shutil.copytree(image, checkout)
    assert outdated_sentence(image, checkout) is None
    edit(checkout)
    sources_digest.cache_clear()
    assert "--build" in str(outdated_sentence(image, checkout))


def test_a_checkout_that_this_user_may_not_read_is_not_compared(image: Path, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    assert outdated_sentence(image, tmp_path / "checkout") is None
