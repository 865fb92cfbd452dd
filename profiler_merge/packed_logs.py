"""Archives of Darshan logs, unpacked while they are merged."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from dxt_replay.profiler_merge.darshan.job_logs import LOG_SUFFIXES
from dxt_replay.profiler_merge.recognise import kind_of
from dxt_replay.traces.errors import LogError


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The paths, with a temporary folder of its logs in the place of each archive (tar, zip); they are there inside.

    Raises: LogError for an archive that is damaged, holds no log, or does not fit the disk.
    """
    with ExitStack() as stack:
        found = []
        for path in paths:
            kind = kind_of(path) if path.is_file() else None
            if kind in ("tar", "zip"):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dxt-logs-")))
                _unpack(path, folder, kind)
                found.append(folder)
            else:
                found.append(path)
        yield found


def _unpack(path: Path, folder: Path, kind: str) -> None:
    logs = 0
    try:
        for name, file in (_of_tar if kind == "tar" else _of_zip)(path):
            # Wherever the archive wants it: parts of the name alone, below the folder.
            parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
            place = folder.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with file, place.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            logs += 1
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise LogError(f"{path} cannot be unpacked: {error}. Unpack it into an empty folder and give that") from error
    if not logs:
        raise LogError(f"{path} is an archive without a {LOG_SUFFIXES[0]} log: give the logs of one job")


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
