"""Checksums of raw files: published ones, and those recorded when a file was first read whole.

sums.json, beside the files, holds {name: {"bytes": …, "sha256": …}}. Files that the user gives for each split also have
MD5s, as published files of splits do.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.documents import decode
from common.errors import UserError
from common.files import FileDigest, write_atomically
from data_prep.sources.discover import Source, own_path

SHA256 = re.compile(r"[0-9a-fA-F]{64}")
MD5 = re.compile(r"[0-9a-fA-F]{32}")
SUMS_NAME = "sums.json"
PUBLISHED = "data.remote.sha256"


@dataclass(frozen=True)
class KnownSum:
    """The SHA-256 that a file must have, the key or file that gives it, and the file's size if known."""

    sha256: str
    given_by: str
    bytes: int | None = None


def published_sums(sums: Any) -> dict[str, str]:
    """Return checksums by file name, from a mapping or from a file in sha256sum's format."""
    if isinstance(sums, str):
        try:
            lines = [
                line.split(maxsplit=1)
                for line in own_path(sums).read_text(encoding="utf-8").splitlines()
                if line.strip()
            ]
            sums = {name.strip().removeprefix("*").removeprefix("./"): sha256 for sha256, name in lines}
        except (OSError, ValueError) as error:
            raise UserError(f"{PUBLISHED}={sums}: not a file as sha256sum writes it ({error})") from error
    if not isinstance(sums or {}, Mapping):
        raise UserError(f"{PUBLISHED}={sums}: give {{NAME: SUM}}, or a file as sha256sum writes it")
    for name, sha256 in (sums or {}).items():
        if not SHA256.fullmatch(str(sha256)):
            raise UserError(f"{PUBLISHED}: {name}: {sha256} is not a SHA-256 of 64 hexadecimal digits")
    return {str(name): str(sha256).lower() for name, sha256 in (sums or {}).items()}


def known_sum(directory: Path, name: str, published: Any) -> KnownSum | None:
    """Return the checksum of a file in `directory`, as published or else as recorded; None without one."""
    sums = published_sums(published)
    if name in sums:
        return KnownSum(sums[name], PUBLISHED)
    digest = _read_digests(directory).get(name)
    return None if digest is None else KnownSum(digest.sha256, str(directory / SUMS_NAME), digest.bytes)


def refuse_other(path: Path, expected: KnownSum | None, digest: FileDigest) -> None:
    """Raise UserError for a file with another checksum."""
    if expected is not None and digest.sha256 != expected.sha256:
        raise UserError(
            f"{path}: sha256 {digest.sha256} where {expected.given_by} has {expected.sha256}; {_remedy(expected)}"
        )


def refuse_other_size(path: Path, expected: KnownSum | None) -> None:
    """Raise UserError for a file of another size, before it is read."""
    if expected is not None and expected.bytes is not None and path.stat().st_size != expected.bytes:
        size = f"{path.stat().st_size:,} bytes where {expected.given_by} has {expected.bytes:,}"
        raise UserError(f"{path}: {size}; {_remedy(expected)}")


def _remedy(expected: KnownSum) -> str:
    return f"delete it to have it fetched again, or, if it is right, take its name out of {expected.given_by}"


def given_md5s(checksums: Any, sources: Sequence[Source]) -> list[str | None]:
    """Return the MD5 that data.checksums, a mapping of names or paths, gives each file; None if it gives none."""
    if not isinstance(checksums or {}, Mapping):
        raise UserError(f"data.checksums={checksums}: give {{NAME: MD5}}")
    sums: list[str | None] = [None] * len(sources)
    for name, md5 in (checksums or {}).items():
        if not MD5.fullmatch(str(md5)):
            raise UserError(f"data.checksums: {name}: {md5} is not an MD5 of 32 hexadecimal digits")
        path = own_path(str(name)).resolve()
        places = [place for place, source in enumerate(sources) if Path(source.path).resolve() == path]
        places = places or [place for place, source in enumerate(sources) if source.name == str(name)]
        if len(places) != 1:
            count = f"{len(places)} files" if places else "no file"
            raise UserError(
                f"data.checksums: {name}: {count} of data.train, data.val and data.test have that name; "
                f"{'give the path of each' if places else 'correct it, or leave it out'}"
            )
        sums[places[0]] = str(md5).lower()
    return sums


def refuse_other_md5(sources: Sequence[Source], expected_md5s: Sequence[str | None], md5s: Sequence[str]) -> None:
    """Raise UserError for a file with another MD5 than expected."""
    for source, other, md5 in zip(sources, expected_md5s, md5s, strict=True):
        if other not in (None, md5):
            raise UserError(
                f"{source.path}: MD5 {md5} where data.checksums has {other}; get the right file, or, if it is right, "
                "correct data.checksums"
            )


def note_sums(directory: Path, digests: Mapping[str, FileDigest]) -> None:
    """Record the checksums of files that have been read whole and compared with the known ones."""
    if not digests:
        return
    with FileLock(directory / f".{SUMS_NAME}.lock"):  # a separate file, since some versions of filelock empty theirs
        recorded_digests = _read_digests(directory)
        if recorded_digests != (all_digests := {**recorded_digests, **digests}):
            entries = {name: asdict(digest) for name, digest in all_digests.items()}
            write_atomically(directory / SUMS_NAME, (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode())


def _read_digests(directory: Path) -> dict[str, FileDigest]:
    path = directory / SUMS_NAME
    try:
        return decode(path.read_bytes() or "{}", dict[str, FileDigest])
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path}: not as it was written ({error}); correct or delete it") from error
