"""Unpacks archives of Darshan logs during a merge."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from dxt_replay.profiler_merge.darshan.job_logs import LOG_SUFFIXES
from dxt_replay.profiler_merge.recognise import kind_of
from dxt_replay.traces.errors import DxtReplayError, LogError


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """paths: the given paths, with a temporary folder of its logs for each archive. archives: folder -> archive."""

    paths: list[Path]
    archives: Mapping[Path, Path]

    def named(self, text: str) -> str:
        """The text with each temporary folder replaced by its archive, which the user knows."""
        for folder, archive in self.archives.items():
            text = text.replace(str(folder), str(archive))
        return text


def is_packed(path: Path) -> bool:
    """Whether a path is an archive (tar, zip), by its content."""
    return path.is_file() and kind_of(path) in ("tar", "zip")


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """The paths with their archives unpacked into temporary folders that exist within the context. Errors from inside
    name the archives.

    Raises: LogError for an archive that is damaged, has no log, or does not fit on the disk.
    """
    with ExitStack() as stack:
        archives = {}
        for path in filter(is_packed, dict.fromkeys(paths)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dxt-logs-")))
            _unpack(path, folder)
            archives[path] = folder
        found = Unpacked(
            paths=[archives.get(path, path) for path in paths],
            archives={folder: path for path, folder in archives.items()},
        )
        try:
            yield found
        except DxtReplayError as error:
            error.args = tuple(found.named(each) if isinstance(each, str) else each for each in error.args)
            raise


def _unpack(path: Path, folder: Path) -> None:
    logs = 0
    try:
        for name, file in (_of_tar if kind_of(path) == "tar" else _of_zip)(path):
            # Ignore the archive's own paths: use parts of the name alone, below the folder.
            parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
            place = folder.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with file, place.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            logs += 1
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise LogError(f"{path} cannot be unpacked: {error}. Unpack it into an empty folder and give that") from error
    if not logs:
        raise LogError(f"{path} is an archive without a {LOG_SUFFIXES[0]} log: unpack it and give what it holds")


def _of_tar(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(LOG_SUFFIXES) and (file := archive.extractfile(member)):
                yield member.name, file


def _of_zip(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(LOG_SUFFIXES):
                yield name, archive.open(name)
