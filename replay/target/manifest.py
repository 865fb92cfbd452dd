"""The manifest of a target lists every staged file. No other file there is ever changed.

`TARGET/dxt-replay-manifest.json`, one line a file:

    {"schema_version": 3, "made_by": "dxt-replay", "data_sets": ["<identity>", ...], "files": [
    {"path": "dxt-replay-twin/a/b", "size": 4096, "record_id": 17, "sparse": false, "state": "whole"},
    ...]}

It is written before the first file, with state `planned`, and again at the end. So the files of an interrupted staging
can be told from foreign files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.path_columns import TEXT, booleans, column, is_ascending, pieces
from dxt_replay.replay.target.placement import BELOW_A_ROOT, TWIN_ROOT
from dxt_replay.replay.target.protocol import Target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable

MANIFEST_NAME = "dxt-replay-manifest.json"
MANIFEST_VERSION = 3  # History: 1 (0.1.0): first. 2: `data_bytes` and `layout` of HDF5 files. 3: `written` files.
PLANNED = "planned"  # State of a file that is to be written; it may exist already, or not
WHOLE = "whole"  # State of a file that is written to its full size
CREATED_BY_RUN = "created_by_run"  # State of a file that the captured job only writes: each run makes it anew

MANIFEST_SCHEMA = pa.schema(
    [
        ("path", TEXT),
        ("size", pa.uint64()),
        ("record_id", pa.uint64()),
        ("sparse", pa.bool_()),
        ("state", pa.string()),
        ("data_bytes", pa.uint64()),
        ("layout", pa.string()),
        ("written", pa.bool_()),
    ]
)
"""A row a file: `path` below the target, `size` in bytes; a `sparse` one is a hole of that size.

`data_bytes`: the bytes of a real HDF5 file that accesses need, without its metadata. `layout`: digest of where its
chunks lie. Both null for other files. `written`: replays write into a staged file, or give it another name."""

_NOT_CONTAINED = r"(^|/)(\.?\.?)(/|$)|\x00"  # A name that is empty, `.` or `..`, or a NUL
_PIECE_BYTES = 8 << 20  # Bytes of entries that are read at a time: as objects they are larger than as columns


class _Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A file as JSON has it, key by key a column of MANIFEST_SCHEMA."""

    path: str
    size: int
    record_id: int
    sparse: bool
    state: Literal["planned", "whole", "created_by_run"]
    data_bytes: int | None = None
    layout: str | None = None
    written: bool | None = False


class _Document(msgspec.Struct):
    """A manifest as JSON has it."""

    schema_version: int
    made_by: Literal["dxt-replay"]
    data_sets: list[str]
    files: msgspec.Raw


_ENTRIES = msgspec.json.Decoder(list[_Entry])


def manifest_files(**columns: Any) -> pa.Table:
    """Files from columns of MANIFEST_SCHEMA in any order of the paths, of which no two are equal; `written` and the
    columns of HDF5 files may be left out."""
    count = len(columns["path"])
    columns = {"data_bytes": [None] * count, "layout": [None] * count, "written": [False] * count} | columns
    return in_order(pa.table({name: columns[name] for name in MANIFEST_SCHEMA.names}, schema=MANIFEST_SCHEMA))


def in_order(files: pa.Table) -> pa.Table:
    """The files in ascending order of the bytes of their paths, each column in one piece; of two equal paths the later.

    The other functions here give and take files like that."""
    files = files.combine_chunks()
    paths = column(files["path"])
    if is_ascending(paths):
        return files
    order = pc.sort_indices(paths)  # stable
    paths = paths.take(order)
    last = np.ones(len(paths), dtype=bool)
    last[:-1] = booleans(pc.not_equal(paths[:-1], paths[1:]))
    return files.take(order.filter(pa.array(last))).combine_chunks()


def in_state(files: pa.Table, state: str) -> np.ndarray:
    """bool[files]: which files are in the state."""
    return booleans(pc.equal(files["state"], state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The staged files of a target. `data_sets`: identities of the data sets staged there, in order.

    `files`: of MANIFEST_SCHEMA, in order. `digest`: of the text that it was read from, None for one that was not."""

    data_sets: tuple[str, ...] = ()
    files: pa.Table = field(default_factory=MANIFEST_SCHEMA.empty_table)
    digest: bytes | None = field(default=None, compare=False)

    @property
    def path(self) -> pa.LargeStringArray:
        """The paths of the files."""
        return column(self.files["path"])

    def with_files(self, files: pa.Table, data_set: str) -> Manifest:
        """This manifest with these files added or replaced."""
        data_sets = self.data_sets if data_set in self.data_sets else (*self.data_sets, data_set)
        kept = self.files.filter(pc.invert(pc.is_in(self.files["path"], value_set=column(files["path"]))))
        return Manifest(data_sets=data_sets, files=in_order(pa.concat_tables([kept, files])) if len(kept) else files)


def read_manifest(target: Target) -> Manifest:
    """The manifest of a target; an empty one if there is none.

    Raises: TargetError when it is damaged, foreign, or written by a newer release."""
    text = _text(target)
    if text is None:
        return Manifest()
    shown = target.shown(MANIFEST_NAME)
    try:
        head = msgspec.json.decode(text, type=_Document)
        if head.schema_version > MANIFEST_VERSION:
            raise TargetError(
                f"{shown} has version {head.schema_version}, this release reads up to {MANIFEST_VERSION}: "
                "update dxt-replay"
            )
        files = in_order(pa.concat_tables([MANIFEST_SCHEMA.empty_table(), *map(_columns, _pieces(bytes(head.files)))]))
        path = files["path"]
        ours = pc.and_not(pc.match_substring_regex(path, BELOW_A_ROOT), pc.match_substring_regex(path, _NOT_CONTAINED))
        if not pc.all(ours, min_count=0).as_py():
            raise ValueError(f"{path.filter(pc.invert(ours))[0].as_py()!r} is not below {TWIN_ROOT}")
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise TargetError(
            f"{shown} is damaged or not ours ({printable(str(error))}): move it and {TWIN_ROOT}* away, then stage again"
        ) from error
    return Manifest(data_sets=tuple(head.data_sets), files=files, digest=_digest(text))


def is_unchanged(target: Target, manifest: Manifest) -> bool:
    """Whether the manifest of a target is still the one that was read."""
    text = _text(target)
    return (None if text is None else _digest(text)) == manifest.digest


def _text(target: Target) -> bytearray | None:
    with target.open(MANIFEST_NAME) as file:
        if file is None:
            return None
        text = bytearray(file.size)
        return text[: file.read_into(memoryview(text), 0)]


def _digest(text: bytearray) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _pieces(array: bytes) -> Iterator[bytes]:
    """Split the text of a JSON array of objects into several arrays. A line break is always between two objects,
    because JSON escapes those in texts, and no entry holds an object."""
    begin = 0
    while (end := array.find(b"},\n{", begin + _PIECE_BYTES)) >= 0:
        yield b"[" * (begin > 0) + array[begin : end + 1] + b"]"
        begin = end + 3
    yield b"[" * (begin > 0) + array[begin:]


def _columns(array: bytes) -> pa.Table:
    """Raises: ValueError, OverflowError."""
    entries = _ENTRIES.decode(array)
    columns = {name: [getattr(entry, name) for entry in entries] for name in MANIFEST_SCHEMA.names}
    columns["written"] = [bool(written) for written in columns["written"]]
    return pa.table(columns, schema=MANIFEST_SCHEMA)


def write_manifest(target: Target, manifest: Manifest) -> None:
    """Replace the manifest as a whole. Raises: TargetError when the disk refuses; the old one is then kept."""
    target.put(MANIFEST_NAME, _blocks(manifest), replace=True, sync=True)


def _blocks(manifest: Manifest) -> Iterator[bytes]:
    """A line a file, some at a time: all together are larger than the manifest. JSON escapes line breaks in texts."""
    head = {"schema_version": MANIFEST_VERSION, "made_by": "dxt-replay", "data_sets": manifest.data_sets}
    yield msgspec.json.encode(head)[:-1] + b', "files": [\n'
    encoder, count = msgspec.json.Encoder(), len(manifest.files)
    for rows in pieces(count):
        columns = manifest.files.slice(rows.start, rows.stop - rows.start).to_pydict()
        lines = encoder.encode_lines(map(_Entry, *columns.values())).removesuffix(b"\n").replace(b"\n", b",\n")
        yield lines + (b",\n" if rows.stop < count else b"\n")
    yield b"]}\n"
