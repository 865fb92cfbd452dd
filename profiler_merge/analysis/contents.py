"""The contents of recorded files that can still be opened: TFRecord records, HDF5 datasets and chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import DxtReplayError, MissingDependencyError
from dxt_replay.traces.schema import FORMATS, codes
from dxt_replay.traces.store.reader import Capture

_LENGTH_BYTES, _CRC_BYTES = 8, 4
"""A TFRecord: length (u64, little endian), CRC of the length, data, CRC of the data (tensorflow/core/lib/io)."""

_MOST_RECORD_BYTES = 1 << 40

NOT_HERE = "not on this machine"
"""Reason for a file that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """`tfrecords` and `datasets`: the tables of these names; `unread`: path -> why the file could not be read."""

    tfrecords: pa.Table
    datasets: pa.Table
    unread: Mapping[str, str]


def contents(capture: Capture, *, locate: Callable[[str], Path] = lambda path: Path(path)) -> Contents:
    """Read the TFRecord and HDF5 files of a capture; never writes to them.

    `locate`: maps a recorded path to its present one. Reads the frame of every record, not its data. A file that is
    absent, changed or damaged is no error; `unread` names it.
    """
    paths = capture.paths()
    formats = np.array(FORMATS)[codes(capture.files, "format")]
    rows: dict[str, list[dict[str, Any]]] = {"tfrecord": [], "hdf5": []}
    unread = {}
    for file_id in np.flatnonzero(capture.file_mask).tolist():
        look = _LOOK.get(formats[file_id])
        if look is None:
            continue
        try:
            found = list(look(locate(paths[file_id])))
        except MissingDependencyError:
            raise
        except FileNotFoundError:
            unread[paths[file_id]] = NOT_HERE
            continue
        except (OSError, ValueError, KeyError, RuntimeError, DxtReplayError) as error:
            unread[paths[file_id]] = getattr(error, "strerror", None) or str(error)
            continue
        rows[formats[file_id]] += [{"file_id": file_id, "path": paths[file_id], **row} for row in found]
    tables = {name: pa.Table.from_pylist(rows[kind], schema=TABLES[name].schema) for kind, name in _TABLES.items()}
    return Contents(unread=unread, **tables)


def _tfrecord(path: Path) -> Iterator[dict[str, Any]]:
    lengths: list[int] = []
    with open(path, "rb", buffering=0) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            header = os.pread(file.fileno(), _LENGTH_BYTES, at)
            length = int.from_bytes(header, "little")
            at += _LENGTH_BYTES + _CRC_BYTES + length + _CRC_BYTES
            if len(header) < _LENGTH_BYTES or length > _MOST_RECORD_BYTES or at > size:
                raise ValueError(f"record {len(lengths)} ends beyond the file: not TFRecord, compressed or truncated")
            lengths.append(length)
    yield {
        "size_bytes": size,
        "records": len(lengths),
        "least_bytes": min(lengths, default=None),
        "most_bytes": max(lengths, default=None),
        "mean_bytes": sum(lengths) / len(lengths) if lengths else None,
    }


def _hdf5(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError("h5py", "looking into HDF5 files", "pip install 'dxt-replay[hdf5]'") from error

    found: list[dict[str, Any]] = []

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        chunk = item.chunks
        row = {
            "dataset": name,
            "shape": "x".join(map(str, item.shape or ())),
            "type": str(item.dtype),
            "chunk": None if chunk is None else "x".join(map(str, chunk)),
            "chunk_bytes": None if chunk is None else int(np.prod(chunk)) * item.dtype.itemsize,
            "chunks_stored": None if chunk is None else item.id.get_num_chunks(),
            "filter": item.compression,
            "bytes": int(item.nbytes),
            "stored_bytes": int(item.id.get_storage_size()),
        }
        found.append(row)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    yield from found


_LOOK: Mapping[str, Callable[[Path], Iterator[dict[str, Any]]]] = {"tfrecord": _tfrecord, "hdf5": _hdf5}
_TABLES = {"tfrecord": "tfrecords", "hdf5": "datasets"}
