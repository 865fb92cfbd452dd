"""Estimates of the framework, data loader, readers, read-ahead and order of the samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.workloads.description import Framework
from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.estimate import Estimate, estimate
from dxt_replay.workloads.fit.observation import Observation, RankReads
from dxt_replay.workloads.fit.pipeline import batches_ahead
from dxt_replay.workloads.fit.sample_shape import Samples
from dxt_replay.workloads.fit.sample_size import runs_of

IN_ORDER = 0.9
"""Share of the samples that lie behind the previous one, from which the order counts as sequential."""

_PROFILES: Mapping[str, tuple[Framework, str]] = {
    "kineto": ("pytorch", "a PyTorch profile"),
    "xplane": ("tensorflow", "a TensorFlow profile"),
}
"""Kind of a source -> the framework, and how it was found."""

_NO_PROFILE: tuple[Framework, str] = ("pytorch", "no profile names one")

OPENS_PER_SAMPLE = 0.5
"""Opens per sample from which the application counts as opening a file for every sample."""

_AHEAD_FILES = 3
"""Files that DLIO's TFRecord reader has open for each of its threads: one is read, two are opened ahead."""

_STREAM_BATCHES = 3
"""Batches that each stream of DLIO's TensorFlow reader buffers, for formats other than TFRecord."""

_KEEPS_OPEN = ("hdf5", "npz", "npy", "csv")
"""Formats whose headers, or whole files, DLIO's PyTorch loader reads again for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """name: DLIO's data loader and framework. synchronous: whether the application reads in its training thread.
    estimates: of the keys."""

    name: Framework
    synchronous: bool
    estimates: tuple[Estimate, ...]


def loader(seen: Observation, data: DataFiles | None, samples: Samples | None) -> Loader:
    """The loader of DLIO whose reads are most like those of the capture."""
    profile = next((each for kind, each in _PROFILES.items() if kind in seen.sources), None)
    if data is None or samples is None:
        framework, how = profile or _NO_PROFILE
        return Loader(
            name=framework,
            synchronous=False,
            estimates=(
                estimate("framework", framework, how),
                estimate("reader.data_loader", framework, "that of the framework; nothing is read"),
            ),
        )
    name: Framework
    dealing = seen.looked[0].model.dealing
    synchronous = all(rank.synchronous for rank in seen.looked) and dealing is None
    if data.format == "tfrecord":
        name, why = "tensorflow", "the one that DLIO has for TFRecord"
    elif dealing is not None:
        name, why = "pytorch", f"worker processes make whole batches in turn, {100 * dealing.consistent:.3g} % in time"
    else:
        name, why = _by_opens(seen, data, samples, synchronous=synchronous)
    error = _other_profile(profile, name)
    must = profile[1] if profile is not None and not error else "that of the data loader"
    in_thread = synchronous and name == "tensorflow"
    ahead = "its reads run ahead of the loop, in the capture the training thread reads" if in_thread else ""
    return Loader(
        name=name,
        synchronous=synchronous,
        estimates=(
            estimate("framework", name, must),
            estimate("reader.data_loader", name, why, error, ahead),
            _readers(seen, data, name, synchronous=synchronous),
            _prefetch(seen, data, name, synchronous=synchronous),
            *_order(seen, data, samples),
        ),
    )


def _other_profile(profile: tuple[Framework, str] | None, name: Framework) -> str:
    if profile is None or profile[0] == name:
        return ""
    return f"the profile is of {profile[0]}, whose loader in DLIO cannot do this"


def _by_opens(seen: Observation, data: DataFiles, samples: Samples, *, synchronous: bool) -> tuple[Framework, str]:
    """PyTorch's loader opens a file for each sample, TensorFlow's keeps it open while it reads on in it."""
    opened = sum(int(np.isin(rank.opens[:, 0], data.train).sum()) for rank in seen.looked)
    taken = samples.batch * sum(int(rank.is_training.sum()) for rank in seen.looked)
    share = opened / max(taken, 1)
    said = f"{share:.2g} opens for each sample"
    if samples.at_once:
        return "tensorflow", "it alone loads a file once for all of its samples"
    if share >= OPENS_PER_SAMPLE or data.format not in _KEEPS_OPEN:
        thread = "in the training thread" if synchronous else "by readers"
        return "pytorch", f"{said}, {thread}"
    return "tensorflow", f"{said}: files are kept open, which DLIO's PyTorch loader never does"


def _readers(seen: Observation, data: DataFiles, name: str, *, synchronous: bool) -> Estimate:
    key = "reader.read_threads"
    dealing = seen.looked[0].model.dealing
    if dealing is not None and name == "pytorch":
        return estimate(key, dealing.workers, "worker processes in turn")
    if synchronous and name == "pytorch":
        return estimate(key, 0, "the training thread reads")
    lanes = [len(np.unique(rank.lane[np.isin(rank.file_id, data.train)])) for rank in seen.looked]
    if data.format == "tfrecord":
        flight = float(np.median(np.concatenate([files_in_flight(rank, data.train) for rank in seen.looked])))
        found = f"{flight:.3g} files read at the same time, of which DLIO has {_AHEAD_FILES} for each thread"
        if "generated" in seen.sources or seen.lanes_are_threads:
            flight = max(flight, float(np.median(lanes)))
            found = f"{flight:.3g} lanes with reads or files at a time, of which DLIO has {_AHEAD_FILES} a thread"
        return estimate(key, max(round(flight / _AHEAD_FILES), 1), found)
    number = max(round(float(np.median(lanes))), 1)
    if synchronous:
        return estimate(key, 1, "the training thread reads, and this loader needs a reader")
    error = "" if seen.lanes_are_threads else "threads are inferred from reads that overlap"
    return estimate(key, number, f"lanes with reads of the data set: {number}", error)


def files_in_flight(rank: RankReads, files: np.ndarray) -> np.ndarray:
    """Number of files between their first and their last read, at the begin of each read. A pass begins at offset 0."""
    chosen = np.flatnonzero(np.isin(rank.file_id, files))
    chosen = chosen[np.argsort(rank.file_id[chosen], kind="stable")]
    if not len(chosen):
        return np.zeros(1)
    file_id, start, end = rank.file_id[chosen], rank.start_ns[chosen], rank.end_ns[chosen]
    first = np.flatnonzero(np.append(True, file_id[1:] != file_id[:-1]) | (rank.offset[chosen] == 0))
    last = np.append(first[1:], len(chosen)) - 1
    begins, ends = np.sort(start[first]), np.sort(end[last])
    at = np.sort(start)
    return np.searchsorted(begins, at, side="right") - np.searchsorted(ends, at, side="right")


def _prefetch(seen: Observation, data: DataFiles, name: str, *, synchronous: bool) -> Estimate:
    key = "reader.prefetch_size"
    dealing = seen.looked[0].model.dealing
    if dealing is not None and name == "pytorch":
        return estimate(
            key, dealing.prefetch * dealing.workers, f"{dealing.prefetch} batches for each of {dealing.workers} workers"
        )
    if synchronous:
        return estimate(key, 0, "reads never run ahead of the loop")
    made = [ahead for ahead in (batches_ahead(rank.loop) for rank in seen.looked) if ahead is not None]
    if made:
        return estimate(key, max(made), f"at most {max(made)} made batches wait for the loop")
    lead = max(rank.model.lead for rank in seen.looked)
    if data.format != "tfrecord" and seen.looked[0].model.known is not None:
        readers = max(len(np.unique(rank.lane[np.isin(rank.file_id, data.train)])) for rank in seen.looked)
        held = _STREAM_BATCHES * readers if name == "tensorflow" else 0
        under_way = max(lead + 1, readers)
        found = f"{under_way} batches are under way at most, of which the readers hold {held}"
        return estimate(key, max(under_way - held, 0), found)
    return estimate(
        key,
        2,
        f"DLIO's default: reads are up to {lead} batches ahead",
        "how many of them the readers themselves hold is not seen",
    )


def _order(seen: Observation, data: DataFiles, samples: Samples) -> tuple[Estimate, ...]:
    """Whether samples are read in order. DLIO's TFRecord reader shuffles in memory alone."""
    if data.format == "tfrecord" or data.stream or samples.at_once:
        return ()
    rising = [_rising(seen, rank, data, samples) for rank in seen.looked]
    share = float(np.mean(rising))
    if share >= IN_ORDER:
        return ()
    return (
        estimate(
            "reader.sample_shuffle",
            "random",
            f"{100 * share:.3g} % of the samples lie behind the one before",
            "DLIO's code (head, v2.0) reads in the order of names whatever this says",
        ),
    )


def _rising(seen: Observation, rank: RankReads, data: DataFiles, samples: Samples) -> float:
    """Share of a rank's samples that lie behind the previous one, by file or by place in the file."""
    places, _, _ = runs_of(rank, data.train)
    if samples.one_file_each:
        places = np.argsort(np.argsort(seen.paths))[places >> 44]
    steps = np.diff(places)
    steps = steps[steps != 0]
    return float((steps > 0).mean()) if len(steps) else 1.0
