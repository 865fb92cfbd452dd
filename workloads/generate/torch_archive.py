"""The requests of `torch.save` and `torch.load` for a dictionary of tensors, from the format of their archive. Pure.

The archive is an uncompressed zip with the data of each entry at a multiple of 64 bytes: the pickled dictionary, a few
small entries, then one entry for each tensor. Python writes and reads it through a buffer of one block. Source: PyTorch
2.1 and later (`caffe2/serialize/inline_container.cc`, `torch/serialization.py`), checked with strace. Archives above 4
GiB have 8 more bytes for each entry, which are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Union

State = Mapping[str, Union[int, "State"]]
"""Names to the elements of a tensor, or to another such dictionary."""

Request = tuple[int, int]
"""Offset and length."""

STORAGES = {
    "int8": ("CharStorage", 1), "uint8": ("ByteStorage", 1), "fp16": ("HalfStorage", 2),
    "bf16": ("BFloat16Storage", 2), "fp32": ("FloatStorage", 4), "fp64": ("DoubleStorage", 8),
}  # fmt: skip
"""Datatype of DLIO -> PyTorch's class of storage, and the bytes of an element."""

_ALIGNMENT, _HEADER, _DESCRIPTOR, _ENTRY, _ENDS = 64, 30, 16, 46, (56, 20, 22)
_SIZES_BEFORE = {".format_version": 1, ".storage_alignment": 2, "byteorder": 6}
_SIZES_AFTER = {"version": 2, ".data/serialization_id": 40}
_MEMO_BYTE = 256
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of the archive: offsets of its header, its data and its end."""

    header: int
    data: int
    end: int
    name_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The offsets in an archive. size: bytes of the file."""

    entries: tuple[_Entry, ...]
    directory: int
    size: int


def archive_of(state: State, datatype: str) -> Archive:
    """The archive of a dictionary of tensors of one datatype (a key of STORAGES)."""
    storage, element_bytes = STORAGES[datatype]
    tensors = list(_elements(state))
    named = {"data.pkl": pickle_bytes(state, storage)} | _SIZES_BEFORE
    named |= {f"data/{number}": elements * element_bytes for number, elements in enumerate(tensors)}
    entries, at = [], 0
    for name, size in (named | _SIZES_AFTER).items():
        name_bytes = len("archive/") + len(name)
        data = -(-(at + _HEADER + name_bytes + 4) // _ALIGNMENT) * _ALIGNMENT
        end = data + size + _DESCRIPTOR
        entries.append(_Entry(header=at, data=data, end=end, name_bytes=name_bytes))
        at = end
    directory = sum(_ENTRY + entry.name_bytes for entry in entries)
    return Archive(entries=tuple(entries), directory=at, size=at + directory + sum(_ENDS))


def archive_writes(archive: Archive, block_bytes: int) -> list[Request]:
    """The writes of `torch.save` through a buffer of `block_bytes`, in order."""
    writer = _BufferedWriter(block_bytes)
    for entry in archive.entries:
        writer.write(entry.data - entry.header)
        writer.write(entry.end - _DESCRIPTOR - entry.data)
        writer.write(_DESCRIPTOR)
    writer.write(archive.size - sum(_ENDS) - archive.directory)
    for size in _ENDS:
        writer.write(size)
    return writer.finished()


def archive_reads(archive: Archive, block_bytes: int) -> list[Request]:
    """The reads of `torch.load` through a buffer of `block_bytes`, in order: the directory, then the tensors."""
    pickled, first_small, *_ = archive.entries
    tensors = archive.entries[1 + len(_SIZES_BEFORE) : -len(_SIZES_AFTER)]
    version, identity = archive.entries[-2:]
    reader = _BufferedReader(block_bytes, archive.size)
    reader.restart()
    reader.read(0, 4)
    reader.restart()
    reader.read(0, 4)
    for begin in (archive.size - block_bytes, archive.size - 22, archive.size - 42, archive.size - 98):
        reader.restart()
        reader.read(max(begin, 0), min(block_bytes, archive.size - max(begin, 0)))
    for begin in (archive.directory, identity.header, version.header, first_small.header, pickled.header):
        reader.restart()
        reader.read(begin, _HEADER)
    for entry in (pickled, *tensors):
        reader.read(entry.header, _HEADER)
        reader.read(entry.data, entry.end - _DESCRIPTOR - entry.data)
    return reader.requests


def pickle_bytes(state: State, storage: str) -> int:
    """Bytes of the pickled dictionary (protocol 2), which contains a storage for each tensor."""
    pickler = _Pickler(storage)
    return 2 + pickler.dictionary(state) + 1


def _elements(state: State) -> Iterator[int]:
    for value in state.values():
        if isinstance(value, int):
            yield value
        else:
            yield from _elements(value)


class _Pickler:
    """Counts the bytes that Python's pickler writes; it names repeated objects by their number in a memo."""

    def __init__(self, storage: str) -> None:
        self._storage = storage
        self._memo: dict[str, int] = {}
        self._used = 0
        self._tensors = 0

    def dictionary(self, state: State) -> int:
        """Bytes of a dictionary."""
        total = 1 + self._put()
        items = list(state.items())
        for begin in range(0, len(items), _BATCH):
            batch = items[begin : begin + _BATCH]
            total += 2 if len(batch) > 1 else 1
            for name, value in batch:
                total += self._text(name)
                total += self._tensor(value) if isinstance(value, int) else self.dictionary(value)
        return total

    def _tensor(self, elements: int) -> int:
        total = self._once("torch._utils\n_rebuild_tensor_v2\n", 1) + 1
        total += self._pid(elements) + 1
        total += 2 + _integer(elements) + 1 + self._put() + 2 + 1 + self._put() + 1
        total += self._once("collections\nOrderedDict\n", 1) + 2 + self._put()
        return total + 1 + self._put() + 1 + self._put()

    def _pid(self, elements: int) -> int:
        total = 1 + self._once("storage", 5) + self._once(f"torch\n{self._storage}\n", 1)
        total += self._text(str(self._tensors)) + self._once("cpu", 5) + _integer(elements)
        self._tensors += 1
        return total + 1 + self._put()

    def _text(self, text: str) -> int:
        return 5 + len(text.encode()) + self._put()

    def _once(self, name: str, head: int) -> int:
        if (number := self._memo.get(name)) is not None:
            return 2 if number < _MEMO_BYTE else 5
        self._memo[name] = self._used
        return head + len(name) + self._put()

    def _put(self) -> int:
        self._used += 1
        return 2 if self._used <= _MEMO_BYTE else 5


def _integer(value: int) -> int:
    """Bytes of an integer: 1, 2 or 4 behind its code, or a length and as many bytes as it needs."""
    if value < 1 << 31:
        return 2 if value < 1 << 8 else 3 if value < 1 << 16 else 5
    return 2 + value.bit_length() // 8 + 1


class _BufferedWriter:
    """The writes that Python's `BufferedWriter` makes of consecutive pieces."""

    def __init__(self, block_bytes: int) -> None:
        self._block = block_bytes
        self._begin = self._held = 0
        self._requests: list[Request] = []

    def write(self, size: int) -> None:
        """Write a piece."""
        if self._held + size > self._block:
            self._flush()
            if size > self._block:
                self._held = size
                self._flush()
                return
        self._held += size

    def finished(self) -> list[Request]:
        """All writes, the last one at the close."""
        self._flush()
        return self._requests

    def _flush(self) -> None:
        if self._held:
            self._requests.append((self._begin, self._held))
            self._begin += self._held
            self._held = 0


class _BufferedReader:
    """The reads that Python's `BufferedReader` makes for reads at given offsets."""

    def __init__(self, block_bytes: int, size: int) -> None:
        self._block, self._size = block_bytes, size
        self._begin = self._end = 0
        self.requests: list[Request] = []

    def restart(self) -> None:
        """Forget the contents of the buffer."""
        self._begin = self._end = 0

    def read(self, offset: int, length: int) -> None:
        """Read the bytes that the buffer does not hold: large pieces past it, small ones through it."""
        if not self._begin <= offset < self._end:
            self._begin = self._end = offset
        missing = offset + length - self._end
        if missing <= 0:
            return
        if missing > self._block:
            self.requests.append((self._end, missing))
            self._begin = self._end = offset + length
            return
        taken = min(self._block, self._size - self._end)
        self.requests.append((self._end, taken))
        self._begin, self._end = self._end, self._end + taken
