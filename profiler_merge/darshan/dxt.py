"""DXT modules of a Darshan log -> columns, one row per traced read or write.

Layout: darshan-dxt-log-format.h. A record is a header of 104 bytes, its write segments, its read segments. A segment
has 32 bytes, or 40 with a pthread id (DXT_POSIX version 2, DXT_MPIIO version 3): only the module version shows which.
A record's size is in its header, so the headers are walked one by one, in stretches of whole records; no other Python
runs per record, and none per segment.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dxt_replay.profiler_merge.darshan.log import DamagedLogError, DarshanLog, text
from dxt_replay.traces.errors import LogError

DXT_MODULES = ("DXT_POSIX", "DXT_MPIIO")

_HAS_PTHREAD = {
    ("DXT_POSIX", 1): False, ("DXT_POSIX", 2): True,
    ("DXT_MPIIO", 1): False, ("DXT_MPIIO", 2): False, ("DXT_MPIIO", 3): True,
}  # fmt: skip
"""Module versions that this release reads -> whether their segments carry a pthread id."""

_ANNOTATION = b"pthread_id="
"""The text of 64 bytes, with the thread's id, behind a segment in logs of Darshan's branch dev-dxt-extra-info."""

HEADER_BYTES, _SEGMENT_BYTES = 104, 32
BLOCK_BYTES = 8 << 20
"""Least bytes of a stretch, except for the last. It must exceed a header, or no record would ever fit."""

_COUNTS_AT, _WORD = 88, 8

_WITHOUT_OFFSETS = ("DXT_MPIIO", 1)
UNKNOWN_OFFSET = -1
_LEAST_OFFSET = {"DXT_POSIX": 0, "DXT_MPIIO": UNKNOWN_OFFSET}
# Beyond these limits a sum of offset and length, or a time in ns, would not fit 64 bits.
_MAX_BYTES = (1 << 62) - 1
_MAX_SECONDS = 4e9


class Stretch(NamedTuple):
    """Records and their segments as 64-bit words, in file order and byte order.

    headers: uint64 (n, 13).
    segments: uint64 (m, 4) or (m, 5).
    writes, reads: int64 (n,), segments of each record in this stretch. They differ from the header's counts only if a
    record is split.
    earlier: segments of the first record that earlier stretches hold.
    """

    headers: np.ndarray
    segments: np.ndarray
    writes: np.ndarray
    reads: np.ndarray
    earlier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DxtBlock:
    """Records of one rank or several, and their segments in file order: the writes of a record before its reads.

    record_ids, ranks, host_fields: uint64, int64 and S64 (n_records,).
    write_counts, read_counts: int64 (n_records,), segments of each record.
    record: int32 (n_segments,), index into the records.
    is_write: bool (n_segments,).
    offset, length: int64 (n_segments,), bytes. An offset of -1 is unknown (MPI-IO only); a length of 0 is a read at
        the end of the file.
    start_s, end_s: float64 (n_segments,), seconds on the rank's own clock.
    pthread_id: uint64 (n_segments,); None for 32-byte segments.
    """

    record_ids: np.ndarray
    ranks: np.ndarray
    host_fields: np.ndarray
    write_counts: np.ndarray
    read_counts: np.ndarray
    record: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    pthread_id: np.ndarray | None

    @property
    def hostnames(self) -> tuple[str, ...]:
        """The host of each record."""
        fields = self.host_fields.tolist()
        hosts = {field: text(field.partition(b"\0")[0]) for field in set(fields)}
        return tuple(hosts[field] for field in fields)


def read_dxt(log: DarshanLog, module: str = "DXT_POSIX") -> Iterator[DxtBlock]:
    """The module's records in file order, some 8 MiB at a time; nothing when the log has no such module.

    A record is split only when it alone is larger than that: each of its blocks then has a row for it, whose counts
    are those of the block. Ends before the first damaged record or segment, which `log.damage` then names.
    Raises: LogError for an unknown module version.
    """
    if module not in log.modules:
        return
    layout = _layout(log, module)
    place = f"{module} of {log.path}"
    found = stretches(log.chunks(module), layout.segment.itemsize, log.byte_order, place=place)
    try:
        for stretch in found:
            block = _decode(stretch, layout)
            if not _is_sound(block, module, log.job.nprocs):
                records, segments, problem = _sound_part(block, stretch.earlier, log, module)
                log.damage[module] = DamagedLogError(problem, _segments_behind(len(block.record) - segments, found))
                if segments or records:
                    yield _first_of(block, records, segments)
                return
            yield block
    except DamagedLogError as error:
        log.damage[module] = error


def count_segments(log: DarshanLog, module: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Record id, writes and reads of each record that `read_dxt` would read, in file order, from the headers alone.

    Before `read_dxt` has met a damaged segment, those behind it count, too. A record may come in several parts. Raises:
    as `read_dxt`.
    """
    if module in log.damage:
        yield from ((block.record_ids, block.write_counts, block.read_counts) for block in read_dxt(log, module))
        return
    layout = _layout(log, module)
    place = f"{module} of {log.path}"
    try:
        for stretch in stretches(log.chunks(module), layout.segment.itemsize, log.byte_order, place=place):
            yield _column(stretch.headers.view(layout.header)[:, 0], "id"), stretch.writes, stretch.reads
    except DamagedLogError as error:
        log.damage[module] = error


class _Layout(NamedTuple):
    """NumPy layouts of a header and a segment, and whether the segments hold offsets."""

    header: np.dtype
    segment: np.dtype
    has_offsets: bool


def _layout(log: DarshanLog, module: str) -> _Layout:
    version = log.modules[module].version
    has_pthread = _HAS_PTHREAD.get((module, version))
    if has_pthread is None:
        known = ", ".join(str(number) for name, number in _HAS_PTHREAD if name == module)
        raise LogError(f"{log.path} has {module} version {version}; this release reads {known}: update dxt-replay")
    header = [("id", "u8"), ("rank", "i8"), ("shared", "i8"), ("host", "S64"), ("writes", "i8"), ("reads", "i8")]
    segment = [("offset", "i8"), ("length", "i8"), ("start_s", "f8"), ("end_s", "f8")]
    if _has_annotations(log, module):
        segment.append(("annotation", "S64"))
    elif has_pthread:
        segment.append(("pthread_id", "u8"))
    return _Layout(
        header=np.dtype(header).newbyteorder(log.byte_order),
        segment=np.dtype(segment).newbyteorder(log.byte_order),
        has_offsets=(module, version) != _WITHOUT_OFFSETS,
    )


def _decode(stretch: Stretch, layout: _Layout) -> DxtBlock:
    headers = stretch.headers.view(layout.header)[:, 0]
    segments = stretch.segments.view(layout.segment)[:, 0]
    writes, reads = stretch.writes, stretch.reads
    return DxtBlock(
        record_ids=_column(headers, "id"),
        ranks=_column(headers, "rank"),
        host_fields=_column(headers, "host"),
        write_counts=writes,
        read_counts=reads,
        record=np.repeat(np.arange(len(headers), dtype=np.int32), writes + reads),
        is_write=np.repeat(np.tile([True, False], len(headers)), np.stack([writes, reads], axis=1).ravel()),
        offset=_column(segments, "offset") if layout.has_offsets else np.full(len(segments), UNKNOWN_OFFSET),
        length=_column(segments, "length"),
        start_s=_column(segments, "start_s"),
        end_s=_column(segments, "end_s"),
        pthread_id=_threads(segments),
    )


def _has_annotations(log: DarshanLog, module: str) -> bool:
    """Whether segments end in 64 bytes of text. The version does not tell; the first segment does."""
    first = log.first_bytes(module)
    at = HEADER_BYTES + _SEGMENT_BYTES
    return first[at : at + len(_ANNOTATION)] == _ANNOTATION


def _threads(segments: np.ndarray) -> np.ndarray | None:
    """The thread of each segment; None if the layout has none, or a text is not that of a thread."""
    names = segments.dtype.names or ()
    if "pthread_id" in names:
        return _column(segments, "pthread_id")
    if "annotation" not in names:
        return None
    texts, which = np.unique(segments["annotation"], return_inverse=True)
    # Darshan ends the text with a NUL and does not clear the rest of the field, which holds old memory.
    numbers = [text.removeprefix(_ANNOTATION).partition(b"\0")[0].rstrip(b"\n ") for text in texts.tolist()]
    if not all(number.isdigit() and int(number) < 1 << 64 for number in numbers):
        return None
    return np.array([int(number) for number in numbers], dtype=np.uint64)[which.reshape(-1)]


def _column(records: np.ndarray, name: str) -> np.ndarray:
    """A field as an array of its own: later passes read a quarter of the memory, and the records can be freed."""
    field = records[name]
    return np.ascontiguousarray(field, dtype=field.dtype.newbyteorder("="))


def _is_sound(block: DxtBlock, module: str, nprocs: int) -> bool:
    """Whether no record and no segment is damaged. Uses reductions only, for this is the hot path."""
    if len(block.ranks) and not (block.ranks.min() >= 0 and block.ranks.max() < nprocs):
        return False
    if not len(block.record):
        return True
    # A NaN fails the first comparison.
    return bool(
        (block.end_s >= block.start_s).all()
        and block.start_s.min() >= -_MAX_SECONDS
        and block.end_s.max() <= _MAX_SECONDS
        and block.length.min() >= 0
        and block.length.max() <= _MAX_BYTES
        and block.offset.min() >= _LEAST_OFFSET[module]
        and block.offset.max() <= _MAX_BYTES
    )


def _sound_part(block: DxtBlock, earlier: int, log: DarshanLog, module: str) -> tuple[int, int, str]:
    """Records and segments before the first damage, and the damage as the start of a message.

    `earlier`: segments of the first record in blocks before this one.
    """
    start, end = block.start_s, block.end_s
    with np.errstate(invalid="ignore"):
        possible = (np.abs(start) <= _MAX_SECONDS) & (np.abs(end) <= _MAX_SECONDS)
        defects = {
            "has an impossible time": ~possible,
            "ends before it starts": possible & (end < start),
            "has an impossible length": (block.length < 0) | (block.length > _MAX_BYTES),
            "has an impossible offset": (block.offset < _LEAST_OFFSET[module]) | (block.offset > _MAX_BYTES),
        }
    first = [(int(mask.argmax()), name) for name, mask in defects.items() if mask.any()]
    position, defect = min(first, default=(len(block.record), ""))
    foreign = (block.ranks < 0) | (block.ranks >= log.job.nprocs)
    record = int(foreign.argmax()) if foreign.any() else len(block.ranks)
    segments = int(np.searchsorted(block.record, record))
    if segments <= position and record < len(block.ranks):
        name = log.describe(int(block.record_ids[record]))
        problem = f"{module} has a record of the impossible rank {block.ranks[record]} ({name})"
        return record, segments, problem
    record = int(block.record[position])
    number = position - int(np.searchsorted(block.record, record)) + (earlier if record == 0 else 0)
    name = log.describe(int(block.record_ids[record]))
    return record + 1, position, f"{module} segment {number} of rank {block.ranks[record]} {defect} ({name})"


def _segments_behind(count: int, rest: Iterator[Stretch]) -> str:
    """How many segments are missing: `count` and those of the stretches that follow."""
    try:
        for stretch in rest:
            count += len(stretch.segments)
    except DamagedLogError:
        return f"at least {count:,} segments"
    return f"{count:,} segment{'s' * (count != 1)}"


def _first_of(block: DxtBlock, records: int, segments: int) -> DxtBlock:
    """The first records and segments of a block."""
    record, is_write = block.record[:segments], block.is_write[:segments]
    return DxtBlock(
        record_ids=block.record_ids[:records],
        ranks=block.ranks[:records],
        host_fields=block.host_fields[:records],
        write_counts=np.bincount(record[is_write], minlength=records),
        read_counts=np.bincount(record[~is_write], minlength=records),
        record=record,
        is_write=is_write,
        offset=block.offset[:segments],
        length=block.length[:segments],
        start_s=block.start_s[:segments],
        end_s=block.end_s[:segments],
        pthread_id=None if block.pthread_id is None else block.pthread_id[:segments],
    )


class _Source:
    """The chunks as buffers of at least BLOCK_BYTES. An error that ends them is raised after the rest is used up."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.damage: DamagedLogError | None = None
        self.ended = False

    def refill(self, rest: bytes) -> bytes:
        """`rest` and enough chunks to make a block."""
        parts = [rest] if rest else []
        have = len(rest)
        while have < BLOCK_BYTES and not self.ended:
            try:
                chunk = next(self._chunks, None)
            except DamagedLogError as error:
                self.damage, chunk = error, None
            if chunk is None:
                self.ended = True
            else:
                parts.append(chunk)
                have += len(chunk)
        return b"".join(parts)


def stretches(chunks: Iterator[bytes], segment_bytes: int, byte_order: str, *, place: str) -> Iterator[Stretch]:
    """Whole records, some BLOCK_BYTES at a time; a record larger than that is split between segments.

    Memory is bounded by the bytes of the module, whatever a header claims.
    Raises: DamagedLogError, after everything readable (in a record that is cut short, the segments before the cut),
    where a count is negative, a record is cut short or the chunks end in damage.
    """
    source = _Source(chunks)
    counts = struct.Struct(byte_order + "qq")
    rest = b""
    while rest or not source.ended:
        buffer = source.refill(rest)
        stretch, used = _whole_records(buffer, segment_bytes, counts)
        if stretch is not None:
            yield stretch
            rest = buffer[used:]
        elif len(buffer) < HEADER_BYTES:
            rest = buffer
            break
        else:
            rest = yield from _split_record(buffer, source, segment_bytes, counts, place)
    if source.damage is not None:
        raise source.damage
    if rest:
        raise DamagedLogError(f"{place} ends inside a record")


def _whole_records(buffer: bytes, segment_bytes: int, counts: struct.Struct) -> tuple[Stretch | None, int]:
    """The whole, sound records at the start of the buffer, and their size in bytes."""
    unpack, size = counts.unpack_from, len(buffer)
    starts: list[int] = []
    writes: list[int] = []
    reads: list[int] = []
    position = 0
    while (body := position + HEADER_BYTES) <= size:
        write_count, read_count = unpack(buffer, position + _COUNTS_AT)
        end = body + (write_count + read_count) * segment_bytes
        if end > size or write_count < 0 or read_count < 0:
            break
        starts.append(position)
        writes.append(write_count)
        reads.append(read_count)
        position = end
    if not starts:
        return None, 0
    words = np.frombuffer(buffer, np.uint64, position // _WORD)
    header_words = np.array(starts)[:, np.newaxis] // _WORD + np.arange(HEADER_BYTES // _WORD)
    headers = words[header_words]
    if len(starts) == 1:
        # No copy: one record that fills the block is the common case for large logs.
        segments = words[HEADER_BYTES // _WORD :]
    else:
        is_segment = np.ones(len(words), dtype=np.bool_)
        is_segment[header_words] = False
        segments = words[is_segment]
    stretch = Stretch(
        headers=headers,
        segments=segments.reshape(-1, segment_bytes // _WORD),
        writes=np.array(writes),
        reads=np.array(reads),
    )
    return stretch, position


def _split_record(
    buffer: bytes, source: _Source, segment_bytes: int, counts: struct.Struct, place: str
) -> Generator[Stretch, None, bytes]:
    """The record at the start of the buffer, in parts; returns the bytes behind it."""
    headers = np.frombuffer(buffer[:HEADER_BYTES], np.uint64).reshape(1, -1)
    writes, reads = counts.unpack_from(buffer, _COUNTS_AT)
    if writes < 0 or reads < 0:
        raise DamagedLogError(f"{place} has a record of {writes} writes and {reads} reads")
    done, position = 0, HEADER_BYTES
    while True:
        here = min(writes + reads - done, (len(buffer) - position) // segment_bytes)
        end = position + here * segment_bytes
        writes_here = min(max(writes - done, 0), here)
        words = np.frombuffer(buffer, np.uint64, (end - position) // _WORD, position)
        yield Stretch(
            headers=headers,
            segments=words.reshape(-1, segment_bytes // _WORD),
            writes=np.array([writes_here]),
            reads=np.array([here - writes_here]),
            earlier=done,
        )
        done += here
        if done == writes + reads:
            return buffer[end:]
        if source.ended:
            raise source.damage or DamagedLogError(
                f"{place} ends inside a record, after {done} of its {writes + reads} segments"
            )
        buffer, position = source.refill(buffer[end:]), 0
