"""A profile as NumPy columns: one row per event of the host and of GPUs. `reading.read_profile` makes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.traces.errors import ProfileError

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.profiles.marks import RankMarks

NUMBER_STATS = (
    "step_num", "element_id", "input_element_id", "id", "parent_id", "iter_num", "element_size",
    "buffer_limit", "buffered_elements", "batch_size", "max_batch_results", "parallelism",
    "_r", "i", "rank", "pid", "step",
)  # fmt: skip
TEXT_STATS = ("filename", "name", "tf_function_call")
STATS = (*NUMBER_STATS, *TEXT_STATS)
"""The stats that are kept. An event has two or three on average, most of which describe memory or shapes."""

ACCELERATOR = re.compile(r"/device:(GPU|TPU):(\d+)")
"""Name of the plane of an accelerator in profiles of TensorFlow and JAX."""

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events")
"""Categories of PyTorch's events that are work on a GPU; capitalised ones are from 2021 and 2022."""
GPU_LAUNCH = ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime")
"""Categories of the calls that launch such work, or wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLine:
    """One thread or GPU stream. `plane`: row of the profile's planes.

    `id`: in TensorFlow's profiles libstdc++'s hash of the pthread id, in PyTorch's the thread id of the operating
    system, and for a GPU stream the stream's number. `pid`: the process, or for a GPU stream the GPU; 0 where unknown.
    """

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
    """Facts that only PyTorch's profiles hold.

    `category` (int16 per event) is a row of `categories` ("cpu_op", "kernel" ...). `correlation` (int64 per event) is
    equal for a GPU event and the call that launched it, 0 for none. `rank`, and `ranks` of the job: from
    torch.distributed, else None. `pids`: the processes that were profiled. `exports`: paths to which the profiler
    itself wrote.
    """

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

    `line` (int32) is a row of `lines`, `name` (int32) a row of `names` and `display_names`. `start_ns` (int64) is
    CLOCK_REALTIME when `epoch_start_ns`, the instant at which the profiler started, is known, else relative to it.
    `epoch_source`: `profile_start_time` (exact), `element_id` (about 1 us early, TF 2.5 to 2.15), `ts` (PyTorch)
    or "".
    Names that are not UTF-8 are decoded with surrogate escapes. `options` is empty before TF 2.21.
    `stats`: key -> (event rows, values), ascending; see `stat`. `skipped_fields`: message -> number of fields in the
    file that this release does not know. `torch`: of a PyTorch profile only. `warnings`: damage that was skipped.
    `marks`: of `recording`, which know the steps better than any events.
    `phases`: if the process was profiled several times, the profile of each time; else empty.
    """

    path: Path
    hostnames: tuple[str, ...]
    epoch_start_ns: int | None
    epoch_source: str
    options: Mapping[str, int | str]
    planes: tuple[str, ...]
    lines: tuple[ProfileLine, ...]
    names: tuple[str, ...]
    display_names: tuple[str, ...]
    line: np.ndarray
    name: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    stats: Mapping[str, tuple[np.ndarray, np.ndarray]]
    texts: tuple[str, ...]
    skipped_fields: Mapping[str, int]
    torch: TorchFacts | None = None
    warnings: tuple[str, ...] = ()
    phases: tuple[Profile, ...] = ()
    marks: RankMarks | None = None

    def __len__(self) -> int:
        """Number of events."""
        return len(self.line)

    @property
    def end_ns(self) -> np.ndarray:
        """int64 end of every event, exclusive, on the clock of `start_ns`."""
        return self.start_ns + self.duration_ns

    def stat(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Events that carry the stat: (rows int64, ascending; values). Both empty when none does.

        Values are int64 for a key of NUMBER_STATS (ids from 2**63 wrap, as they do in the file), str objects for
        one of TEXT_STATS. Raises: KeyError for a key that is not kept.
        """
        if key in TEXT_STATS:
            rows, texts = self.stats.get(key, (np.empty(0, np.int64), np.empty(0, np.int64)))
            return rows, np.array(self.texts, dtype=object)[texts]
        if key not in NUMBER_STATS:
            raise KeyError(key)
        return self.stats.get(key, (np.empty(0, np.int64), np.empty(0, np.int64)))

    def stat_column(self, key: str, missing: int) -> np.ndarray:
        """int64 per event: the stat of NUMBER_STATS, or `missing`."""
        column = np.full(len(self), missing, np.int64)
        rows, values = self.stat(key)
        column[rows] = values
        return column

    def names_matching(self, pattern: str) -> np.ndarray:
        """bool per row of `names`: the whole name matches the regular expression."""
        matches = re.compile(pattern, re.DOTALL).fullmatch
        return np.fromiter((matches(name) is not None for name in self.names), bool, len(self.names))

    def lines_matching(self, pattern: str) -> np.ndarray:
        """bool per row of `lines`: the whole thread class matches the regular expression."""
        matches = re.compile(pattern, re.DOTALL).fullmatch
        return np.fromiter((matches(line.thread_class) is not None for line in self.lines), bool, len(self.lines))

    @property
    def line_ids(self) -> np.ndarray:
        """int64 `id` per row of `lines`."""
        return np.array([line.id for line in self.lines], np.int64)


def beside(first: Profile, second: Profile) -> Profile:
    """The merged events of two profilers that ran in one process, such as JAX's and TensorFlow's at the same time.

    The facts of the file (`path`, `hostnames`, `options`) are those of the first.
    Raises: ProfileError if one of them has no date.
    """
    if first.epoch_start_ns is None or second.epoch_start_ns is None:
        undated = first if first.epoch_start_ns is None else second
        raise ProfileError(f"{undated.path} has no date, so its events cannot be put beside those of another profile")
    shift = {
        "line": len(first.lines),
        "name": len(first.names),
        "plane": len(first.planes),
        "text": len(first.texts),
        "row": len(first),
    }
    stats = dict(first.stats)
    for key, (rows, values) in second.stats.items():
        values = values + shift["text"] if key in TEXT_STATS else values
        before = stats.get(key, (np.empty(0, np.int64), np.empty(0, values.dtype)))
        stats[key] = np.concatenate((before[0], rows + shift["row"])), np.concatenate((before[1], values))
    lines = tuple(replace(line, plane=line.plane + shift["plane"]) for line in second.lines)
    return replace(
        first,
        planes=(*first.planes, *second.planes),
        lines=(*first.lines, *lines),
        names=(*first.names, *second.names),
        display_names=(*first.display_names, *second.display_names),
        line=np.concatenate((first.line, second.line + np.int32(shift["line"]))),
        name=np.concatenate((first.name, second.name + np.int32(shift["name"]))),
        start_ns=np.concatenate((first.start_ns, second.start_ns)),
        duration_ns=np.concatenate((first.duration_ns, second.duration_ns)),
        stats=stats,
        texts=(*first.texts, *second.texts),
        skipped_fields={
            message: first.skipped_fields.get(message, 0) + second.skipped_fields.get(message, 0)
            for message in (*first.skipped_fields, *second.skipped_fields)
        },
        warnings=(*first.warnings, *second.warnings),
    )
