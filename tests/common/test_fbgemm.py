"""FBGEMM's commit: of pip's record or of an image's own Dockerfile, never of a date."""

import json
from pathlib import Path
from typing import Any

import pytest

from common import machine

PRIMUS = """FROM base
# Latest known working commit on the `main` branch. Committed on 2026-06-17.
ARG FBGEMM_COMMIT=80bd3c077dc41b55cd16ed4dcad15cf7c1c1d76a
RUN git clone ${FBGEMM_REPO} && cd FBGEMM && git checkout ${FBGEMM_COMMIT}
"""
COMMIT = "80bd3c077dc41b55cd16ed4dcad15cf7c1c1d76a"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text(PRIMUS)
    return tmp_path / "Dockerfile"


def install(site: Path, name: str, version: str, origin: str | None = None) -> None:
    """The part of an installed package that tells what it is."""
    directory = site / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if origin is not None:
        (directory / "direct_url.json").write_text(origin)


ORIGINS = [
    ("2026.10.8", None, COMMIT),
    ("1.9.0", None, None),  # installed over the image's own
    ("2026.10.8", {"url": "https://example.org", "vcs_info": {"vcs": "git", "commit_id": "f" * 40}}, "f" * 40),
    ("2026.10.8", {"url": "file:///wheels", "archive_info": {}}, COMMIT),
]


@pytest.mark.parametrize(("version", "origin", "commit"), ORIGINS)
def test_the_commit_is_pips_or_the_images(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, version: str, origin: Any, commit: str | None
) -> None:
    install(tmp_path / "site", "fbgemm-gpu-of-a-test", version, json.dumps(origin) if origin else None)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert machine.installed_commit(["absent-package", "fbgemm-gpu-of-a-test"], manifest) == commit


def test_no_record_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "fbgemm-gpu-of-a-test", "2026.10.8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for text in (None, "ARG FBGEMM_COMMIT\n"):
        if text is not None:
            (tmp_path / "Dockerfile").write_text(text)
        for name in ("fbgemm-gpu-of-a-test", "absent-package"):
            assert machine.installed_commit([name], tmp_path / "Dockerfile") is None
