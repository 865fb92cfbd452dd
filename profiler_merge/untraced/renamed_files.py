"""The renames of one process, from names and counters, and the lanes of operations on the renamed files.

TensorFlow writes every file of a checkpoint under a temporary name: `X.tempstate<number>` or `X.tmp<32 hex digits>`
becomes X; the data shards of a saved part, `P_temp/part-i-of-n.data-j-of-m`, become `P.data-k-of-n*m` when the parts
are merged (tensorflow/core/util/tensor_bundle/tensor_bundle.cc), just before the merged index is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, CountedFiles
from dxt_replay.traces.files import record_id

_TEMPORARY = re.compile(rb"(?P<final>.+)(?:\.tempstate\d+|\.tmp[0-9a-f]{32})", re.DOTALL)
_PART = re.compile(
    rb"(?P<prefix>.+)_temp/part-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<rest>\.data-(?P<shard>\d{5})-of-(?P<shards>\d{5}))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedShard:
    """The data shard of a part: its final name, that of the merged index, and that of the index of the part."""

    final: bytes
    index: bytes
    part_index: bytes


def final_name(path: bytes) -> bytes | None:
    """The name that a temporary file gets when it is complete; None for a file that is not temporary."""
    found = _TEMPORARY.fullmatch(path)
    return None if found is None else found["final"]


def merged_shard(path: bytes) -> MergedShard | None:
    """The destination of a part's data shard when the parts of a checkpoint are merged; None for any other file."""
    found = _PART.fullmatch(path)
    if found is None:
        return None
    prefix, shards = found["prefix"], int(found["shards"])
    number = int(found["part"]) * shards + int(found["shard"])
    return MergedShard(
        final=prefix + b".data-%05d-of-%05d" % (number, int(found["parts"]) * shards),
        index=prefix + b".index",
        part_index=path[: -len(found["rest"])] + b".index",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a rank wrote: its name and when it was closed (ns on any clock)."""

    path: bytes
    closed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A rename at an instant (ns on any clock); its duration is not recorded."""

    source: bytes
    target: bytes
    at_ns: int


def checkpoint_renames(
    written: list[WrittenFile], closed_ns: Mapping[bytes, int], opened_ns: Mapping[bytes, int]
) -> list[Rename]:
    """The renames that followed the writing of temporary files, in order of time.

    `closed_ns` and `opened_ns`: last close and first open of the rank's files by name. A shard counts as merged only if
    the merged index was opened. It is renamed after its part's index was read, and before the merged one is opened.
    """
    found = []
    for file in written:
        target = final_name(file.path)
        if target is None:
            continue
        found.append(Rename(source=file.path, target=target, at_ns=file.closed_ns))
        shard = merged_shard(target)
        if shard is not None and shard.index in opened_ns:
            before = opened_ns[shard.index]
            at_ns = min(max(file.closed_ns, closed_ns.get(shard.part_index, before)), before)
            found.append(Rename(source=target, target=shard.final, at_ns=max(at_ns, file.closed_ns)))
    return sorted(found, key=lambda rename: rename.at_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Renames:
    """Record ids uint64 (n,), instants int64 (n,), and the names that the log lacks."""

    source: np.ndarray
    target: np.ndarray
    at_ns: np.ndarray
    names: Mapping[int, bytes]

    def __len__(self) -> int:
        """Number of renames."""
        return len(self.at_ns)


@dataclass(kw_only=True)
class LogNames:
    """The names of a log: `by_record`, record id -> path, and the inverse."""

    by_record: Mapping[int, bytes]
    _temporary: dict[int, bool] = field(default_factory=dict)

    @cached_property
    def by_path(self) -> Mapping[bytes, int]:
        """Path -> record id; the last one if several have it."""
        return {path: record for record, path in self.by_record.items()}

    def is_temporary(self, record: int) -> bool:
        """Whether a file is one that gets its final name when it is complete."""
        if record not in self._temporary:
            self._temporary[record] = final_name(self.by_record.get(record, b"")) is not None
        return self._temporary[record]


def may_rename(files: CountedFiles, names: LogNames) -> np.ndarray:
    """int64: the processes of `files` that may have renamed some, by their written files or by Darshan's counters."""
    written = np.flatnonzero((files.writes != 0) & (files.close_end != NOT_SEEN))
    records, which = np.unique(files.record_id[written], return_inverse=True)
    temporary = np.fromiter((names.is_temporary(record) for record in records.tolist()), bool, len(records))
    mine = files.renamed_from != 0
    mine[written[temporary[which]]] = True
    return np.unique(files.process[mine])


def renames_of(posix: CountedFiles, stdio: CountedFiles, names: LogNames, begin_ns: int) -> Renames:
    """The renames of one process that the counters report, and those of temporary files of checkpoints.

    `begin_ns`: time of a rename without any known time.
    """
    closed, opened, written = _closed_opened_written((posix, stdio), names.by_record)
    found = checkpoint_renames(written, closed, opened)
    pairs = {(rename.source, rename.target) for rename in found}
    counted = np.flatnonzero(posix.renamed_from)
    for target, source in zip(posix.record_id[counted].tolist(), posix.renamed_from[counted].tolist(), strict=True):
        old, new = names.by_record.get(source), names.by_record.get(target)
        if old is None or new is None or (old, new) in pairs:
            continue
        at_ns = closed.get(old, opened.get(new, begin_ns))
        found.append(Rename(source=old, target=new, at_ns=at_ns))
    # In a log with obfuscated names, the ids are those of the true names.
    ids = {
        path: names.by_path[path] if path in names.by_path else record_id(path)
        for rename in found
        for path in (rename.source, rename.target)
    }
    return Renames(
        source=np.array([ids[rename.source] for rename in found], dtype=np.uint64),
        target=np.array([ids[rename.target] for rename in found], dtype=np.uint64),
        at_ns=np.array([rename.at_ns for rename in found], dtype=np.int64),
        names={ids[rename.target]: rename.target for rename in found if ids[rename.target] not in names.by_record},
    )


def _closed_opened_written(
    layers: tuple[CountedFiles, ...], names: Mapping[int, bytes]
) -> tuple[dict[bytes, int], dict[bytes, int], list[WrittenFile]]:
    """Last close and first open by name, and the temporary files that were written."""
    closed: dict[bytes, int] = {}
    opened: dict[bytes, int] = {}
    written = []
    for files in layers:
        columns = (files.record_id, files.close_end, files.open_start, files.writes)
        for record, close, opening, writes in zip(*(column.tolist() for column in columns), strict=True):
            path = names.get(record)
            if path is None:
                continue
            if close != NOT_SEEN:
                closed[path] = max(close, closed.get(path, close))
            if opening != NOT_SEEN:
                opened[path] = min(opening, opened.get(path, opening))
            if writes and close != NOT_SEEN and final_name(path) is not None:
                written.append(WrittenFile(path=path, closed_ns=close))
    return closed, opened, written


def follow_renames(record: np.ndarray, wanted: np.ndarray, renames: Renames, names: LogNames) -> None:
    """Assigns rows (n,) of one process without a lane to the lane that uses the renamed file, or the rest of its
    checkpoint.

    A write under another name must precede the reads of it, whatever the storage does in a replay.
    """
    with_lane = np.flatnonzero(wanted >= 0)
    lanes = dict(zip(record[with_lane].tolist(), wanted[with_lane].tolist(), strict=True))
    paths = {path: known for known, path in renames.names.items()}
    for source, target in reversed(list(zip(renames.source.tolist(), renames.target.tolist(), strict=True))):
        shard = merged_shard(renames.names.get(source) or names.by_record[source])
        chain = [source, target]
        if shard is not None:
            ids = (paths.get(path, names.by_path.get(path)) for path in (shard.part_index, shard.index))
            chain += [known for known in ids if known is not None]
        lane = next((lanes[each] for each in chain[1:] if each in lanes), -1)
        if lane >= 0:
            for each in chain:
                lanes.setdefault(each, lane)
    followed = np.fromiter((lanes.get(each, -1) for each in record.tolist()), np.int32, len(record))
    np.copyto(wanted, followed, where=wanted < 0)
