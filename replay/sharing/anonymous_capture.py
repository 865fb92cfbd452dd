"""A capture to one that can be shared: the same operations, under names that say nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.sharing.anonymous_info import anonymous_info
from dxt_replay.replay.sharing.anonymous_names import AnonymousNames
from dxt_replay.replay.sharing.public_words import FILE_SYSTEMS, FILTERS
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import FILES_SCHEMA, HDF5_SCHEMA, LANES_SCHEMA, SPANS_SCHEMA, UNION_THREAD
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    discard_capture,
    lanes_with_facts,
    publish_capture,
    spans_writer,
    write_capture_info,
    write_files,
    write_hdf5,
    write_lanes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymized:
    """An anonymized capture that was written.

    path: its directory.
    operations, files, spans: their numbers, which are those of the original.
    replaced_parts: different parts of paths and of dataset names that have another name now.
    replaced_spans: different names of spans that are replaced.
    random_key: whether the key was made for this capture alone, and is lost.
    """

    path: Path
    operations: int
    files: int
    spans: int
    replaced_parts: int
    replaced_spans: int
    random_key: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay anonymize --json` prints."""
        return {**asdict(self), "path": str(self.path)}


def anonymize_capture(capture: Capture, output: Path, key: bytes, *, random_key: bool, force: bool) -> Anonymized:
    """Write the capture `output`. Operations are copied a row group at a time.

    Raises: TargetError for `output`; CaptureError for a damaged source.
    """
    names = AnonymousNames(key)
    spans, replaced_spans = anonymous_spans(capture.spans, names)
    working = begin_capture(output, force=force)
    try:
        with OpsWriter(working) as writer:
            for batch in capture.operations():
                writer.write(pa.Table.from_batches([batch]))
        write_files(working, anonymous_files(capture.files, names))
        with spans_writer(working) as table:
            table.write(spans)
        write_hdf5(working, anonymous_datasets(capture.hdf5, names))
        write_lanes(working, anonymous_lanes(capture.lanes, names))
        write_capture_info(working, anonymous_info(capture, names, as_source(capture), writer.rows))
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise
    return Anonymized(
        path=output,
        operations=writer.rows,
        files=capture.files.num_rows,
        spans=spans.num_rows,
        replaced_parts=names.replaced_parts,
        replaced_spans=replaced_spans,
        random_key=random_key,
    )


def anonymous_files(files: pa.Table, names: AnonymousNames) -> pa.Table:
    """The files table (`FILES_SCHEMA`) with other paths, record ids and mount points; sizes and counters stay."""
    return _replaced(
        files,
        FILES_SCHEMA,
        path=pa.array([names.path(path) for path in exact_paths(files)], type=pa.string()),
        path_bytes=pa.nulls(files.num_rows, pa.binary()),
        record_id=pa.array(map(names.record_id, files["record_id"].to_pylist()), type=pa.uint64()),
        mount=pa.array(map(names.mount, files["mount"].to_pylist()), type=pa.string()),
        fs_type=pa.array([_file_system(kind, names) for kind in files["fs_type"].to_pylist()], type=pa.string()),
    )


def anonymous_spans(spans: pa.Table, names: AnonymousNames) -> tuple[pa.Table, int]:
    """The spans (`SPANS_SCHEMA`) with other names and thread numbers, and how many different names were replaced."""
    column = spans["name"].combine_chunks().dictionary_encode()
    before = column.dictionary.to_pylist()
    after = [names.span(name) for name in before]
    table = _replaced(
        spans,
        SPANS_SCHEMA,
        name=pa.array(after, type=pa.string()).take(column.indices),
        thread=pa.array(_thread_numbers(spans["thread"].to_numpy())),
    )
    return table, sum(name != given for name, given in zip(before, after, strict=True))


def anonymous_lanes(lanes: pa.Table, names: AnonymousNames) -> pa.Table:
    """The lanes (`LANES_SCHEMA`) with other names of hosts, and without the ids of processes and threads."""
    hosts = [None if host is None else names.word(host, frozenset()) for host in lanes["host"].to_pylist()]
    return _replaced(lanes_with_facts(lanes, ["role"]), LANES_SCHEMA, host=pa.array(hosts, type=pa.string()))


def anonymous_datasets(datasets: pa.Table, names: AnonymousNames) -> pa.Table:
    """The HDF5 datasets (`HDF5_SCHEMA`) with other names; shapes and chunks stay."""
    filters = [
        None if row is None else [name if name.isdecimal() else names.word(name, FILTERS) for name in row if name]
        for row in datasets["filters"].to_pylist()
    ]
    paths = [names.path(name.encode()) for name in datasets["dataset"].to_pylist()]
    return _replaced(
        datasets,
        HDF5_SCHEMA,
        dataset=pa.array(paths, type=pa.string()),
        filters=pa.array(filters, type=HDF5_SCHEMA.field("filters").type),
    )


def _replaced(table: pa.Table, schema: pa.Schema, **columns: pa.Array) -> pa.Table:
    return pa.table([columns.get(name, table[name]) for name in schema.names], names=schema.names).cast(schema)


def _file_system(kind: str, names: AnonymousNames) -> str:
    """`fuse.sshfs` is `fuse.` and a name: FUSE subtypes are arbitrary, so they are replaced."""
    first, dot, rest = kind.partition(".")
    return names.word(kind, FILE_SYSTEMS) if first not in FILE_SYSTEMS else first + dot + names.word(rest, FILE_SYSTEMS)


def _thread_numbers(thread: np.ndarray) -> np.ndarray:
    """int64: the ids of the threads, which may be those of the machine, as small numbers in the same order.

    UNION_THREAD stays; ids below it count down from -2.
    """
    found, place = np.unique(thread, return_inverse=True)
    below = int(np.count_nonzero(found < UNION_THREAD))
    numbers = np.arange(len(found), dtype=np.int64)
    numbers[:below] -= below - UNION_THREAD
    numbers[below:] -= below + int(UNION_THREAD in found)
    return numbers[place.reshape(-1)]
