"""Estimates the number of samples per file and the number of passes over the data set. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.estimate import Estimate, estimate, relative
from dxt_replay.workloads.fit.observation import Observation
from dxt_replay.workloads.fit.sample_size import SampleSize, sample_size

LOADED_AT_ONCE = 0.1
"""If all reads lie within this share of the steps, the data set counts as loaded before training."""

PASSES_OFF = 0.15
"""Largest deviation of a number of passes from a whole number that is rounded away."""


SEEN_PASSES = 1.5
"""Passes over the seen samples from which these count as all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of the data set as DLIO counts them.

    batch: samples of a step and rank. sample_bytes: of one sample. per_file, files: how many. epochs, steps_per_epoch.
    steps: of a rank in the capture. limit: total_training_steps, None where whole epochs were run.
    file_bytes: mean size of a file; deviation_bytes, skewness: of the sizes, where a file is one sample, else 0.
    unsure: what is not known of the sample; empty for nothing.
    one_file_each: whether each sample is a file of its own. at_once: whether all is loaded within a few steps.
    """

    batch: int
    sample_bytes: float
    per_file: int
    files: int
    epochs: int
    steps_per_epoch: int
    steps: int
    limit: int | None
    file_bytes: float
    deviation_bytes: float
    skewness: float
    one_file_each: bool
    at_once: bool
    unsure: str
    estimates: tuple[Estimate, ...]

    @property
    def run_steps(self) -> int:
        """Steps of a rank that the description comes to."""
        return self.limit if self.limit is not None else self.epochs * self.steps_per_epoch


def _held(seen: Observation, data: DataFiles, split: SampleSize, overhead: int) -> tuple[float, str]:
    """Samples that a file seems to hold, and how that was found."""
    if split.one_file_each:
        return 1.0, "each sample is a file"
    files = len(data.train)
    stored = sum(seen.datasets[file_id].bytes for file_id in data.train.tolist() if file_id in seen.datasets)
    if stored:
        return stored / split.sample_bytes / files, "elements of the largest HDF5 dataset, divided by a sample"
    taken = seen.looked[0].steps * split.batch * seen.ranks
    if split.distinct and taken >= SEEN_PASSES * split.distinct and seen.ranks == len(seen.looked):
        return split.distinct / files, "different places that were read, divided by a sample"
    size = float(seen.sizes[data.train].mean())
    return max(size / (split.sample_bytes + overhead), 1.0), "size of a file divided by a sample"


def _passes_off(passes: float, epochs: int) -> str:
    if passes < 1 - PASSES_OFF:
        return f"{100 * passes:.3g} % of the samples are read"
    return _off("the capture has", passes, epochs)


def samples(
    seen: Observation, data: DataFiles, *, elements: Mapping[str, float], overhead: int, batch: int | None = None
) -> Samples:
    """Batch, record and epochs of a capture.

    elements: names of input-pipeline spans, with how many of them end for each step. overhead: bytes that the format
    adds to each sample. batch: the batch size, where the caller knows it.
    """
    steps = round(float(np.mean([rank.steps for rank in seen.looked])))
    sizes = seen.sizes[data.train].astype(float)
    at_once = loaded_at_once(seen, data)
    step_bytes, step_found = _step_bytes(seen, data, steps, at_once=at_once)
    split = sample_size(seen, data, step_bytes, elements, overhead, batch)
    if at_once:
        return _loaded(seen, sizes, split, steps)
    files = data.files
    by_size, held_found = _held(seen, data, split, overhead)
    passes = steps * split.batch * seen.ranks / (by_size * files)
    epochs, per_file, limit = _epochs(passes, by_size, files, split, steps, seen.ranks)
    found = Samples(
        batch=split.batch,
        sample_bytes=split.sample_bytes,
        per_file=per_file,
        files=files,
        epochs=epochs,
        steps_per_epoch=per_file * files // (split.batch * seen.ranks),
        steps=steps,
        limit=limit,
        file_bytes=float(sizes.mean()),
        deviation_bytes=float(sizes.std()) if per_file == 1 else 0.0,
        skewness=_skewness(sizes) if per_file == 1 else 0.0,
        one_file_each=split.one_file_each,
        unsure=split.error,
        at_once=False,
        estimates=(
            estimate("reader.batch_size", split.batch, split.found, split.error),
            estimate("dataset.num_samples_per_file", per_file, held_found, _off("that is", by_size, per_file)),
        ),
    )
    epoch = _epoch_estimates(found, passes, step_found)
    return dataclasses.replace(found, estimates=(*found.estimates, *epoch))


def _epoch_estimates(found: Samples, passes: float, step_found: str) -> Iterator[Estimate]:
    run = found.run_steps
    errors = [_passes_off(passes, found.epochs)]
    if run != found.steps:
        errors.append(f"{run} steps instead of {found.steps}, {relative(run, found.steps)}")
    yield estimate("train.epochs", found.epochs, f"{passes:.3g} passes: {found.steps} steps of {step_found}", *errors)
    if found.limit is not None:
        yield estimate(
            "train.total_training_steps", found.limit, "steps of the capture, which end before all samples were read"
        )


def _skewness(values: np.ndarray) -> float:
    deviation = float(values.std())
    return float(((values - values.mean()) ** 3).mean()) / deviation**3 if deviation else 0.0


def _off(what: str, value: float, used: int) -> str:
    return f"{what} {value:.4g}, {relative(used, value)}" if abs(value - used) > 0.005 * value else ""


def loaded_at_once(seen: Observation, data: DataFiles) -> bool:
    """Whether all reads of the data set lie in so few steps that no later step can have waited for its own."""
    for rank in seen.looked:
        chosen = rank.of_training & np.isin(rank.file_id, data.train)
        reading = len(np.unique(rank.fetch[chosen]))
        if reading > LOADED_AT_ONCE * max(int(rank.is_training.sum()), 1):
            return False
    return True


def _step_bytes(seen: Observation, data: DataFiles, steps: int, *, at_once: bool) -> tuple[float, str]:
    """Bytes that a step of a rank consumes of the data set, and how that was found.

    Readers that run ahead fill buffers first, so the first quarter of the steps does not count; of streams, whole
    passes over the files are believed before what the reads of single steps show.
    """
    synchronous = seen.looked[0].synchronous
    each = []
    for rank in seen.looked:
        chosen = rank.of_training & np.isin(rank.file_id, data.train)
        by_fetch = np.bincount(rank.fetch[chosen], weights=rank.length[chosen], minlength=len(rank.is_training))
        of_steps = by_fetch[rank.is_training]
        first = 0 if at_once or synchronous else len(of_steps) // 4
        each.append(float(of_steps[first:].sum()) / max(len(of_steps) - first if first else steps, 1))
    found = float(np.mean(each))
    if at_once or synchronous or not data.stream:
        return found, f"{found:.6g} B a step and rank"
    whole = float(seen.sizes[data.train].sum())
    passes = found * steps * seen.ranks / whole
    nearest = round(passes)
    if nearest and abs(passes - nearest) <= PASSES_OFF * nearest:
        return whole * nearest / (
            steps * seen.ranks
        ), f"{found:.6g} B a step and rank, taken for {nearest} whole passes"
    return found, f"{found:.6g} B a step and rank"


def _epochs(
    passes: float, by_size: float, files: int, split: SampleSize, steps: int, ranks: int
) -> tuple[int, int, int | None]:
    """Epochs, samples per file, and the limit of steps.

    Epochs are whole. Where a file holds several samples it may hold fewer or more than it seems to, so that the steps
    come out right: steps weigh double.
    """
    at_a_time = split.batch * ranks
    held = max(round(by_size), 1)
    if passes <= 1 - PASSES_OFF:
        return 1, held, steps
    chosen: tuple[float, int, int] | None = None
    for epochs in {max(int(passes), 1), int(np.ceil(passes))}:
        fitting = round(np.ceil(round(steps / epochs) * at_a_time / files))
        for per_file in {held} if split.one_file_each else {held, max(fitting, 1)}:
            run = epochs * (per_file * files // at_a_time)
            off = abs(per_file / by_size - 1) + 2 * abs(run / steps - 1)
            chosen = min(chosen or (np.inf, 0, 0), (off, epochs, per_file))
    assert chosen is not None  # there are candidates
    _, epochs, per_file = chosen
    return epochs, per_file, steps if epochs == 1 and per_file * files // at_a_time > steps else None


def _loaded(seen: Observation, sizes: np.ndarray, split: SampleSize, steps: int) -> Samples:
    """A data set that every rank loads whole: files of its own for each rank, as DLIO reads no file on two."""
    files = len(sizes) * seen.ranks
    per_file = max(steps // len(sizes), 1)
    return Samples(
        batch=1,
        sample_bytes=float(sizes.mean()) / per_file,
        per_file=per_file,
        files=files,
        epochs=1,
        steps_per_epoch=per_file * len(sizes),
        steps=steps,
        limit=None,
        file_bytes=float(sizes.mean()),
        deviation_bytes=0.0,
        skewness=0.0,
        one_file_each=False,
        at_once=True,
        unsure="",
        estimates=(
            estimate(
                "reader.batch_size",
                1,
                "all files are loaded before training: what a step takes is not seen",
                "only the bytes of a file are known",
            ),
            estimate(
                "dataset.num_samples_per_file",
                per_file,
                f"{steps} steps shared by the files of a rank",
                relative(per_file * len(sizes), steps),
            ),
            estimate("train.epochs", 1, "the files are read once"),
        ),
    )
