"""One file out of a tar archive, whatever else is in it."""

import tarfile
from pathlib import Path
from typing import Any

from common.errors import UserError
from data_prep.io.atomic import FileDigest, SummedFile
from data_prep.io.disk_space import Need, require_room
from data_prep.io.progress import Progress, Tally
from data_prep.sources.checksums import KnownSum, refuse_other
from data_prep.sources.discover import DAMAGE, is_gzip, open_gzip
from data_prep.sources.partial_file import Origin, Part

BLOCK_BYTES = 1 << 20


def archive_origin(archive: Path) -> Origin:
    """What is noted beside a file that was unpacked: where it is from."""
    status = archive.stat()
    return Origin(str(archive.resolve()), last_modified=str(status.st_mtime_ns), total=status.st_size)


def unpack_member(archive: Path, name: str, directory: Path, known: KnownSum | None = None) -> FileDigest:
    """Take one plain file out of a tar archive, wherever in it it lies, to directory/name; nothing else is written.

    The archive is read to its end, so that gzip's own sum of its content is compared.

    Args:
        known: the sum that the archive must have.

    Returns:
        size and sum of the archive.

    Raises:
        UserError: the archive is damaged, another one, or has no such file, or the disk no room for it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with Part(directory / name) as part:
        part.clear()
        origin = archive_origin(archive)
        try:
            is_there, digest = _copy_member(archive, name, part)
            refuse_other(archive, known, digest)
        except (tarfile.TarError, EOFError, *DAMAGE) as error:
            part.clear()
            remedy = "delete it and get it again"
            raise UserError(f"{archive}: not readable as a tar archive ({error}); {remedy}") from error
        except BaseException:
            part.clear()
            raise
        if not is_there:
            part.clear()
            raise UserError(
                f"{archive}: has no file {name}; get it again, or name your own in data.raw with data=local"
            )
        part.finish(origin)
    return digest


def _copy_member(archive: Path, name: str, part: Part) -> tuple[bool, FileDigest]:
    """Copy the first plain file of that name; whether there was one, and the archive's sum."""
    is_there = False
    tally = Tally(0)
    progress = Progress("unpack", archive.stat().st_size, tally)
    with SummedFile(archive) as summed, progress:
        content: Any = open_gzip(summed) if is_gzip(archive) else summed
        with tarfile.open(fileobj=content, mode="r|") as members:
            for member in members:
                # the member's own path is never used, so it cannot lead out of the directory
                if is_there or not member.isfile() or Path(member.name).name != name:
                    continue
                source = members.extractfile(member)
                assert source is not None
                require_room([Need(part.place, member.size, f"to unpack {archive.name}")])
                while block := source.read(BLOCK_BYTES):
                    part.append(block)
                    tally.bytes = summed.position
                is_there = True
        while content.read(BLOCK_BYTES):
            tally.bytes = summed.position
        return is_there, summed.digest()
