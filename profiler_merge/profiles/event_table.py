"""A profile as NumPy columns: one row per event of the host and of GPUs. `reading.read_profile` makes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.traces.errors import ProfileError

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.profiles.marks import RankMarks

STATS = ("step_num", "element_id", "id", "i", "rank", "pid", "tf_function_call")
"""The stats that are kept. An event has two or three on average, most of which describe memory or shapes."""

TEXT_STATS = ("tf_function_call",)
"""Those of text, of which only the events that have them are kept."""

ACCELERATOR = re.compile(r"/device:(GPU|TPU):(\d+)")
"""Name of the plane of an accelerator in profiles of TensorFlow and JAX."""

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events")
"""Categories of PyTorch's events that are work on a GPU; capitalised ones are from 2021 and 2022."""
GPU_LAUNCH = ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime")
"""Categories of the calls that launch such work, or wait for it."""


class DamageError(ValueError):
    """Bytes that no profiler writes. The message says where; the reader adds the file and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLine:
    """One thread or GPU stream. `plane`: row of the profile's planes. `id`: in TensorFlow's profiles libstdc++'s hash
    of the pthread id, in PyTorch's the operating system's thread id, and for a GPU stream the stream's number. `pid`:
    the process, or for a GPU stream the GPU; 0 where unknown."""

    id: int
    name: str
    plane: int
    pid: int = 0

    @property
    def thread_class(self) -> str:
        """The name without its number: `tf_Compute`, `tf_data_iterator_resource`, `python` ..."""
        return re.sub(r"/-?\d+$", "", self.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchFacts:
    """Facts that only PyTorch's profiles hold. `category` (int16 per event): row of `categories` ("cpu_op", ...).
    `correlation` (int64 per event): equal for a GPU event and the call that launched it, 0 for none. `rank`, `ranks` of
    the job: from torch.distributed, else None. `pids`: that were profiled. `exports`: paths that the profiler wrote."""

    category: np.ndarray
    categories: tuple[str, ...]
    correlation: np.ndarray
    rank: int | None
    ranks: int | None
    pids: frozenset[int]
    exports: tuple[str, ...]

    def in_categories(self, *names: str) -> np.ndarray:
        """bool per event: its category is one of `names`."""
        chosen = np.array([category in names for category in self.categories], bool)
        return chosen[self.category]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Events of one profile, sorted by (line, start), the outer event first where two start together.

    `line` (int32) is a row of `lines`, `name` (int32) a row of `names`. `start_ns` (int64) is CLOCK_REALTIME when
    `epoch_start_ns`, the instant at which the profiler started, is known, else relative to it.
    Names that are not UTF-8 are decoded with surrogate escapes. `stats`: key -> (event rows, values); see `stat`.
    `skipped_fields`: message -> number of fields in the file that this release does not know. `torch`: of a PyTorch
    profile only. `warnings`: damage that was skipped.
    `marks`: of `recording`, which know the steps better than any events.
    `phases`: if the process was profiled several times, the profile of each time; else empty.
    """

    path: Path
    hostnames: tuple[str, ...]
    epoch_start_ns: int | None
    planes: tuple[str, ...]
    lines: tuple[ProfileLine, ...]
    names: tuple[str, ...]
    line: np.ndarray
    name: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    stats: Mapping[str, tuple[np.ndarray, np.ndarray]]
    skipped_fields: Mapping[str, int] = field(default_factory=dict)
    torch: TorchFacts | None = None
    warnings: tuple[str, ...] = ()
    phases: tuple[Profile, ...] = ()
    marks: RankMarks | None = None

    def __len__(self) -> int:
        return len(self.line)

    @property
    def end_ns(self) -> np.ndarray:
        """int64 end of every event, exclusive, on the clock of `start_ns`."""
        return self.start_ns + self.duration_ns

    def stat(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Events that carry the stat (one of STATS): (rows, values), int64, ascending. Ids from 2**63 wrap, as they do
        in the file."""
        return self.stats.get(key, (np.empty(0, np.int64), np.empty(0, np.int64)))

    def stat_column(self, key: str, missing: int) -> np.ndarray:
        """int64 per event: the stat, or `missing`."""
        column = np.full(len(self), missing, np.int64)
        rows, values = self.stat(key)
        column[rows] = values
        return column

    def names_matching(self, pattern: str) -> np.ndarray:
        """bool per row of `names`: the whole name matches the regular expression."""
        return _matching(pattern, self.names)

    def lines_matching(self, pattern: str) -> np.ndarray:
        """bool per row of `lines`: the whole thread class matches the regular expression."""
        return _matching(pattern, [line.thread_class for line in self.lines])

    @property
    def line_ids(self) -> np.ndarray:
        """int64 `id` per row of `lines`."""
        return np.array([line.id for line in self.lines], np.int64)


def _matching(pattern: str, texts: Sequence[str]) -> np.ndarray:
    matches = re.compile(pattern, re.DOTALL).fullmatch
    return np.fromiter((matches(text) is not None for text in texts), bool, len(texts))


def beside(first: Profile, second: Profile) -> Profile:
    """The merged events of two profilers that ran in one process, such as JAX's and TensorFlow's at the same time.

    The facts of the file (`path`, `hostnames`) are those of the first.
    Raises: ProfileError if one of them has no date.
    """
    if first.epoch_start_ns is None or second.epoch_start_ns is None:
        undated = first if first.epoch_start_ns is None else second
        raise ProfileError(f"{undated.path} has no date, so its events cannot be put beside those of another profile")
    stats = dict(first.stats)
    for key, (rows, values) in second.stats.items():
        before = first.stat(key)
        stats[key] = np.concatenate((before[0], rows + len(first))), np.concatenate((before[1], values))
    return replace(
        first,
        planes=(*first.planes, *second.planes),
        lines=(*first.lines, *(replace(line, plane=line.plane + len(first.planes)) for line in second.lines)),
        names=(*first.names, *second.names),
        line=np.concatenate((first.line, second.line + np.int32(len(first.lines)))),
        name=np.concatenate((first.name, second.name + np.int32(len(first.names)))),
        start_ns=np.concatenate((first.start_ns, second.start_ns)),
        duration_ns=np.concatenate((first.duration_ns, second.duration_ns)),
        stats=stats,
        skipped_fields=dict(Counter(first.skipped_fields) + Counter(second.skipped_fields)),
        warnings=(*first.warnings, *second.warnings),
    )
