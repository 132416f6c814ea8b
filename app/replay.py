"""A run's record as one file, which `verify bundle=FILE` replays elsewhere.

The zip file has the record without checkpoints in `run/`, the releases' locks in `locks/`, and in
`dataset/manifest.json` what the dataset was made from and how, without rows. `bundle.json` has the checksum of each
file and the digest of the dataset. The run's manifest names the digest of the sources, the image and the releases.
"""

import contextlib
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from app.config.data import DataConfig
from app.data import prepare
from app.record.documents import CONFIG, CURVES, MANIFEST, METRICS, RESULTS, SCORES, SUMMARY, RunManifest, read_manifest
from common.documents import decode, encode
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import MANIFEST_NAME, load_manifest

RECORD = (CONFIG, MANIFEST, METRICS, SUMMARY, RESULTS, CURVES)
CONTENTS, DATASET = "bundle.json", f"dataset/{MANIFEST_NAME}"
LOCKS = Path(__file__).parents[1] / "requirements"
VERSION = 1


class Contents(Struct, kw_only=True):
    """bundle.json: SHA-256 of each other file, the run's name, and the digest of its dataset's manifest."""

    format: str = "clickwork.bundle"
    format_version: int = VERSION
    run: str
    dataset: str
    files: dict[str, str]


def write_bundle(run: Path, out: Path) -> int:
    """Write the record of a run into a file; return the file's size in bytes."""
    dataset = read_manifest(run).dataset
    root, digest = Path(dataset.path or ""), dataset.digest or ""
    # Without the manifest of its time, the dataset could not be made again elsewhere.
    if load_manifest(root).digest != digest:
        raise UserError(f"run={run}: its dataset at {root} has changed since; a bundle has the manifest of that time")
    paths = {f"run/{name}": run / name for name in RECORD if (run / name).exists()}
    paths |= {f"run/{SCORES}/{path.name}": path for path in sorted((run / SCORES).glob("*"))}
    paths |= {DATASET: root / MANIFEST_NAME}
    paths |= {f"locks/{path.name}": path for path in sorted(LOCKS.glob("*.lock"))}
    content = {name: path.read_bytes() for name, path in paths.items()}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    content[CONTENTS] = encode(Contents(run=run.name, dataset=digest, files=sums)).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in content.items():
            # A ZipInfo has a fixed date, so the same record gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    try:
        write_atomically(out, packed.getvalue())
    except OSError as error:
        raise UserError(f"out={out}: {error.strerror}") from error
    return len(packed.getvalue())


@contextlib.contextmanager
def record_directory(run: str | None, bundle: str | None) -> Iterator[Path]:
    """Yield a run's directory, or a temporary one with the record from a bundle."""
    if bundle is None:
        yield Path(run or "")
        return
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with zipfile.ZipFile(bundle) as archive:
                contents = decode(archive.read(CONTENTS), Contents)
                if contents.format_version != VERSION:
                    raise UserError(
                        f"bundle={bundle}: is of version {contents.format_version}, and this version reads {VERSION}; "
                        "make it again from its run: python -m app.bundle run=RUN"
                    )
                for name, expected in contents.files.items():
                    data = archive.read(name)
                    if hashlib.sha256(data).hexdigest() != expected:
                        raise UserError(f"bundle={bundle}: {name} is damaged; copy the file again")
                    # A name such as ../x would lead out of the temporary directory.
                    path = Path(scratch, name).resolve()
                    if not path.is_relative_to(Path(scratch).resolve()):
                        raise UserError(f"bundle={bundle}: {name} is no name of a file in a bundle")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"bundle={bundle}: not a bundle of a run ({error}); give one that bundle wrote") from error
        yield Path(scratch) / "run"


def require_dataset(data: DataConfig, recorded: RunManifest, bundle: str) -> str:
    """Return the directory of the dataset that a bundle's run was trained on; make the dataset if it is missing."""
    digest, root = recorded.dataset.digest or "", data.root
    if (root / MANIFEST_NAME).exists() and load_manifest(root).digest == digest:
        return str(root)
    # The digest in the name keeps datasets of different runs apart.
    made = Path("data") / f"bundle-{digest[:12]}"
    try:
        prepare.prepare(replace(data, path=str(made)))
    except UserError as error:
        raise UserError(
            f"bundle={bundle}: its dataset is not at {root} and cannot be made: {error}; give data.path=DATASET, one "
            f"of digest {digest[:12]}; dataset/{MANIFEST_NAME} in the bundle names the raw files with their checksums"
        ) from error
    if load_manifest(made).digest != digest:
        raise UserError(
            f"bundle={bundle}: the dataset made at {made} is not that of the run: its manifest differs; give "
            f"data.path=DATASET, one of digest {digest[:12]}"
        )
    return str(made)
