"""Infers the files that an application renamed, from their names and from Darshan's rename counters.

TensorFlow writes every file of a checkpoint under a temporary name: `X.tempstate<number>` or `X.tmp<32 hex digits>`
becomes X; the data shards of a saved part, `P_temp/part-i-of-n.data-j-of-m`, become `P.data-k-of-n*m` when the parts
are merged (tensorflow/core/util/tensor_bundle/tensor_bundle.cc), just before the merged index is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
