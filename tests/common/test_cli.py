"""The command line: what is asked for, misspelt, told by help and printed; signals; the digest of the modules."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.cli import DIRECTORIES, ROOT, outdated_sentence, sources_digest
from common.compose import compose_config


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("defaults:\n  - schema\n  - _self_\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "wide.yaml").write_text("width: 9\n")
    return tmp_path


@dataclass
class Texts:
    """Keys of texts, and others."""

    name: str = "x"
    directory: str | None = None
    hosts: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    further: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    share: float = 0.0


@pytest.mark.parametrize(
    "text", ["2026_11_24", "2026_1_12", "1e3", "007", "2024", "1.50", "-0", "true", "Yes", "nan", "1_000.0", "inf", "x"]
)
def test_texts_are_taken_as_they_are_typed(config_dir: Path, text: str) -> None:
    keys = ("name", "directory", "variables.OMP")
    config = compose_config(Texts, config_dir, [f"{key}={text}" for key in keys] + [f"hosts=[{text},b]"])
    assert (config.name, config.directory, config.variables["OMP"], config.hosts[0]) == (text,) * 4


def test_numbers_are_numbers_and_null_is_none(config_dir: Path) -> None:
    overrides = ["count=1_000", "share=1e-3", "directory=null", "further.size=1e3", 'name="12"', "hosts=[a,'1e3']"]
    config = compose_config(Texts, config_dir, overrides)
    assert (config.count, config.share, config.directory, config.further["size"]) == (1000, 0.001, None, 1000.0)
    assert (config.name, config.hosts) == ("12", ["a", "1e3"])


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
