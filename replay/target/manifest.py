"""What a target's manifest holds: every file there that is ours. Nothing that it does not list is ever changed.

`TARGET/dxt-replay-manifest.json`, one line a file:

    {"schema_version": 3, "made_by": "dxt-replay", "data_sets": ["<identity>", ...], "files": [
    {"path": "dxt-replay-twin/a/b", "size": 4096, "record_id": 17, "sparse": false, "state": "whole"},
    ...]}

It is written before the first file with state `planned` and again at the end, so that the files of an
interrupted staging are known from somebody else's.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

from dxt_replay.replay.target.containment import Target, open_target, refusal
from dxt_replay.replay.target.manifest_files import OURS, ManifestFile, ManifestFiles, joined, no_files
from dxt_replay.replay.target.manifest_lines import lines, parse
from dxt_replay.replay.target.path_columns import column, is_ascending, pieces
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

MANIFEST_NAME = "dxt-replay-manifest.json"
MANIFEST_VERSION = 3
"""History: 1 (0.1.0): first. 2: `data_bytes` and `layout` of HDF5 files. 3: `written` files."""

_BLOCK_BYTES = 8 << 20
"""Bytes of lines that are read at a time."""
_BEFORE_LINES, _AFTER_LINES = b', "files": [\n', b"\n]}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is ours in a target. `data_sets`: identities of the data sets staged there, in order."""

    target: Path
    data_sets: tuple[str, ...] = ()
    files: ManifestFiles = field(default_factory=no_files)

    def with_files(self, files: ManifestFiles, data_set: str) -> Manifest:
        """This manifest with these files added or replaced."""
        data_sets = self.data_sets if data_set in self.data_sets else (*self.data_sets, data_set)
        return Manifest(target=self.target, data_sets=data_sets, files=self.files.with_entries(files))


def is_twin_root(name: str) -> bool:
    """Whether a directory of this name in a target is the root of a twin data set."""
    return OURS.fullmatch(f"{name}/") is not None


def load_manifest(target: Path) -> Manifest:
    """The manifest of a target; one without files where there is none.

    Raises: TargetError when it is damaged, not ours, or written by a newer release.
    """
    with open_target(target) as opened:
        return Manifest(target=Path(target)) if opened is None else read_manifest(opened)


def read_manifest(target: Target) -> Manifest:
    """`load_manifest` of an open target."""
    shown = target.shown(MANIFEST_NAME)
    try:
        fd = os.open(MANIFEST_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=target.fd)
    except FileNotFoundError:
        return Manifest(target=target.path)
    except OSError as error:
        raise refusal(error, f"open {shown}") from error
    try:
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("not a plain file")  # a device may have no end
            found = _read_lines(target.path, file)
            if found is not None:
                return found
            file.seek(0)
            data = json.loads(file.read(), object_hook=_entry_or_object)
        version = data["schema_version"]
        if isinstance(version, int) and version > MANIFEST_VERSION:
            raise TargetError(
                f"{shown} has version {version}, this release reads up to {MANIFEST_VERSION}: update dxt-replay"
            )
        return _manifest(target.path, data)
    except OSError as error:
        raise refusal(error, f"read {shown}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError(
            f"{shown} is damaged or not ours ({printable(str(error))}): move it and {TWIN_ROOT}* away, then stage again"
        ) from error


def _manifest(target: Path, data: Mapping[str, Any]) -> Manifest:
    if data["made_by"] != "dxt-replay":
        raise ValueError("not made by dxt-replay")
    entries = (entry if isinstance(entry, ManifestFile) else ManifestFile(**entry) for entry in data["files"])
    files = ManifestFiles.of(entries)
    return Manifest(target=target, data_sets=tuple(map(str, data["data_sets"])), files=files)


def _read_lines(target: Path, file: BufferedReader) -> Manifest | None:
    """The manifest, block by block; None where it is not exactly as this release writes it, though it may be valid."""
    try:
        head = json.loads(file.readline(_BLOCK_BYTES).removesuffix(_BEFORE_LINES) + b"}")
        if head != _head(data_sets := tuple(map(str, head["data_sets"]))):
            return None
        parts, rest, ended = [], b"", False
        while block := file.read(_BLOCK_BYTES):
            text = rest + block
            if ended := text.endswith(_AFTER_LINES):
                text = text.removesuffix(_AFTER_LINES) + b",\n"
            whole, comma, rest = text.rpartition(b",\n")
            if comma:
                parts.append(parse(whole + comma))
        files = joined(parts)
        ordered = all(is_ascending(column([before.path[-1], after.path[0]])) for before, after in pairwise(parts))
        return Manifest(target=target, data_sets=data_sets, files=files) if ended and not rest and ordered else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _entry_or_object(data: dict[str, Any]) -> ManifestFile | dict[str, Any]:
    """A line of the manifest as soon as it is read, so that not all lines are in memory as dictionaries too.

    What is not a valid entry stays as it is, for `_manifest` to refuse once the version is known.
    """
    if "path" in data:
        with suppress(KeyError, TypeError, ValueError):
            return ManifestFile(**{**data, "state": sys.intern(data["state"])})
    return data


def write_manifest(target: Target, manifest: Manifest) -> None:
    """Replace the manifest as a whole. Raises: TargetError when the disk refuses; the old one is then kept."""
    temporary = f".{MANIFEST_NAME}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=target.fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o666, dir_fd=target.fd), "wb") as file:
            file.write(json.dumps(_head(manifest.data_sets)).encode()[:-1] + _BEFORE_LINES)
            files = manifest.files
            for rows in pieces(len(files)):  # some at a time: together they are larger than the manifest
                text = lines(files.part(rows))
                file.write(text if rows.stop < len(files) else text.removesuffix(b",\n"))
            file.write(_AFTER_LINES if len(files) else _AFTER_LINES[1:])
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, MANIFEST_NAME, src_dir_fd=target.fd, dst_dir_fd=target.fd)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=target.fd)
        raise refusal(error, f"write {target.shown(MANIFEST_NAME)}") from error


def _head(data_sets: tuple[str, ...]) -> dict[str, Any]:
    return {"schema_version": MANIFEST_VERSION, "made_by": "dxt-replay", "data_sets": list(data_sets)}


def remove_manifest(target: Target) -> None:
    """Remove the manifest: the last step of removing a data set. Raises: TargetError when the file system refuses."""
    try:
        os.unlink(MANIFEST_NAME, dir_fd=target.fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(error, f"remove {target.shown(MANIFEST_NAME)}") from error
