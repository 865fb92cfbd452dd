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
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from replay.twin.containment import Target, is_contained, open_target, refusal
from replay.twin.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT
from traces.errors import TargetError
from traces.text import printable

MANIFEST_NAME = "dxt-replay-manifest.json"
MANIFEST_VERSION = 3
"""History: 1 (0.1.0): first. 2: `data_bytes` and `layout` of HDF5 files. 3: `written` files."""

PLANNED = "planned"
"""State of a file that is to be written; it may exist already, or not."""
WHOLE = "whole"
"""State of a file that is written to its full size."""
CREATED_BY_RUN = "created_by_run"
"""State of a file that the captured job only writes: each run makes it anew."""
STATES = (PLANNED, WHOLE, CREATED_BY_RUN)

_OURS = re.compile(rf"{TWIN_ROOT}(-[0-9a-f]{{{OWN_ROOT_ID_CHARS}}})?/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file: `path` below the target, `size` in bytes; a `sparse` one is a hole of that size.

    `data_bytes`: the bytes of a real HDF5 file that accesses need, without its metadata.
    `layout`: digest of where its chunks lie. Both None for other files.
    `written`: True for a staged file that replays write into, or give another name; else None.
    """

    path: str
    size: int
    record_id: int
    sparse: bool
    state: str
    data_bytes: int | None = None
    layout: str | None = None
    written: bool | None = None

    def __post_init__(self) -> None:
        numbers = (self.size, self.record_id, self.size if self.data_bytes is None else self.data_bytes)
        if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
            raise ValueError(f"{self.path!r} has no valid size or record id")
        if not isinstance(self.layout, (str, type(None))):
            raise ValueError(f"{self.path!r} has no valid layout")
        if self.written not in (True, None):
            raise ValueError(f"{self.path!r} is not clearly written or not")
        if self.state not in STATES or type(self.sparse) is not bool:
            raise ValueError(f"{self.path!r} has no valid state")
        if not _OURS.match(self.path) or not is_contained(self.path):
            raise ValueError(f"{self.path!r} is not below {TWIN_ROOT}")
        self.path.encode("utf-8")  # the names of files are bytes: half a surrogate pair has none


_OPTIONAL_NAMES = tuple(column.name for column in fields(ManifestFile) if column.default is None)
_as_json: Callable[[str], str] = json.encoder.encode_basestring_ascii


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is ours in a target. `data_sets`: identities of the data sets staged there, in order."""

    target: Path
    data_sets: tuple[str, ...] = ()
    files: Mapping[str, ManifestFile] = field(default_factory=dict)

    def with_files(self, files: Iterable[ManifestFile], data_set: str) -> Manifest:
        """This manifest with these files added or replaced."""
        data_sets = self.data_sets if data_set in self.data_sets else (*self.data_sets, data_set)
        return Manifest(target=self.target, data_sets=data_sets, files={**self.files, **{f.path: f for f in files}})


def is_twin_root(name: str) -> bool:
    """Whether a directory of this name in a target is the root of a twin data set."""
    return _OURS.fullmatch(f"{name}/") is not None


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
            data = json.loads(file.read(), object_hook=_entry_or_object)
        version = data["schema_version"]
        if isinstance(version, int) and version > MANIFEST_VERSION:
            raise TargetError(
                f"{shown} has version {version}, this release reads up to {MANIFEST_VERSION}: update dxt-replay"
            )
        return _manifest(target.path, data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError(
            f"{shown} is damaged or not ours ({printable(str(error))}): move it and {TWIN_ROOT}* away, then stage again"
        ) from error


def _manifest(target: Path, data: Mapping[str, Any]) -> Manifest:
    if data["made_by"] != "dxt-replay":
        raise ValueError("not made by dxt-replay")
    entries = (entry if isinstance(entry, ManifestFile) else ManifestFile(**entry) for entry in data["files"])
    return Manifest(target=target, data_sets=tuple(map(str, data["data_sets"])), files={f.path: f for f in entries})


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
    head = {"schema_version": MANIFEST_VERSION, "made_by": "dxt-replay", "data_sets": list(manifest.data_sets)}
    temporary = f".{MANIFEST_NAME}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=target.fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o666, dir_fd=target.fd), "w", encoding="utf-8") as file:
            file.write(json.dumps(head)[:-1] + ', "files": [')
            file.writelines(_lines(manifest))  # one at a time: together they are larger than the manifest
            file.write("\n]}\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, MANIFEST_NAME, src_dir_fd=target.fd, dst_dir_fd=target.fd)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=target.fd)
        raise refusal(error, f"write {target.shown(MANIFEST_NAME)}") from error


def _lines(manifest: Manifest) -> Iterator[str]:
    """The entries as `json.dumps` would write them, several times as fast."""
    between = "\n"
    for path in sorted(manifest.files):
        file = manifest.files[path]
        rest = {name: value for name in _OPTIONAL_NAMES if (value := getattr(file, name)) is not None}
        yield (
            f'{between}{{"path": {_as_json(path)}, "size": {file.size}, "record_id": {file.record_id}, '
            f'"sparse": {"true" if file.sparse else "false"}, "state": "{file.state}"'
            f"{', ' + json.dumps(rest)[1:-1] if rest else ''}}}"
        )
        between = ",\n"


def remove_manifest(target: Target) -> None:
    """Remove the manifest: the last step of removing a data set. Raises: TargetError when the file system refuses."""
    try:
        os.unlink(MANIFEST_NAME, dir_fd=target.fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(error, f"remove {target.shown(MANIFEST_NAME)}") from error
