"""How large a sample is, how many make a batch, and how often the data set is read. Pure.

Only the product of batch size and record length shows in the bytes that a step reads. What splits it is said with the
value; where nothing does, a batch is one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.fitting.data_files import DataFiles
from replay.fitting.estimate import Estimate, relative
from replay.fitting.observation import Observation, RankReads

WHOLE_FILE = 0.98
"""Share of a file that is read between two reads of its beginning, from which on it counts as read whole."""

MODAL_SHARE = 0.5
"""Share of the samples that must agree for their number per step, or their size, to be believed."""

LOADED_AT_ONCE = 0.1
"""Share of the steps within which all reads lie, up to which the data set counts as loaded before training."""

PASSES_OFF = 0.15
"""How far a number of passes may be from a whole one to be taken for it."""

LIBRARY_GAP = 4096
"""Bytes between two pieces of a sample that an HDF5 library may have put there: the nodes of its index."""

SEEN_PASSES = 1.5
"""Passes over the samples that were seen from which on all of them count as seen."""

REPEATED_SHARE = 0.8
"""Share of the pieces of a batch that must be as long as those of the sample before."""

ELEMENTS_OFF = 0.06
"""How far the elements per step of an input pipeline may be from a whole number."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A sample and a batch: how many bytes, how many samples, how that was found and how sure it is.

    `distinct`: different samples that were read, 0 where unknown.
    """

    batch: int
    sample_bytes: float
    found: str
    error: str = ""
    one_file_each: bool = False
    distinct: int = 0


def _held(seen: Observation, data: DataFiles, split: _Split, overhead: int) -> tuple[float, str]:
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
    split = _split(seen, data, step_bytes, elements, overhead, batch)
    if at_once:
        return _loaded(seen, sizes, split, steps)
    files = _files(data)
    one_each = split.one_file_each
    by_size, held_found = _held(seen, data, split, overhead)
    taken = steps * split.batch * seen.ranks
    passes = taken / (by_size * files)
    epochs, per_file, limit = _epochs(passes, by_size, files, split, steps, seen.ranks)
    per_epoch = per_file * files // (split.batch * seen.ranks)
    run = limit if limit is not None else epochs * per_epoch
    step_note = relative(run, steps)
    return Samples(
        batch=split.batch,
        sample_bytes=split.sample_bytes,
        per_file=per_file,
        files=files,
        epochs=epochs,
        steps_per_epoch=per_epoch,
        steps=steps,
        limit=limit,
        file_bytes=float(sizes.mean()),
        deviation_bytes=float(sizes.std()) if per_file == 1 else 0.0,
        skewness=_skewness(sizes) if per_file == 1 else 0.0,
        one_file_each=one_each,
        unsure=split.error,
        at_once=False,
        estimates=(
            Estimate(key="reader.batch_size", value=split.batch, found=split.found, error=split.error),
            Estimate(
                key="dataset.num_samples_per_file",
                value=per_file,
                found=held_found,
                error=_off("that is", by_size, per_file),
            ),
            Estimate(
                key="train.epochs",
                value=epochs,
                found=f"{passes:.3g} passes: {steps} steps of {step_found}",
                error="; ".join(
                    filter(
                        None,
                        (
                            _passes_off(passes, epochs),
                            f"{run} steps in place of {steps}, {step_note}" if step_note else "",
                        ),
                    )
                ),
            ),
            *_limited(limit),
        ),
    )


def _skewness(values: np.ndarray) -> float:
    deviation = float(values.std())
    return float(((values - values.mean()) ** 3).mean()) / deviation**3 if deviation else 0.0


def _limited(limit: int | None) -> tuple[Estimate, ...]:
    if limit is None:
        return ()
    found = "steps of the capture, which end before all samples were read"
    return (Estimate(key="train.total_training_steps", value=limit, found=found),)


def _off(what: str, value: float, used: int) -> str:
    return f"{what} {value:.4g}, {relative(used, value)}" if abs(value - used) > 0.005 * value else ""


def _files(data: DataFiles) -> int:
    values = {each.key: each.value for each in data.estimates}
    return int(values["dataset.num_files_train"])


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


def _split(
    seen: Observation,
    data: DataFiles,
    step_bytes: float,
    elements: Mapping[str, float],
    overhead: int,
    batch: int | None,
) -> _Split:
    """What a sample is, by the first evidence that there is."""
    if batch is not None:
        return _Split(batch=batch, sample_bytes=max(step_bytes / batch - overhead, 1), found="given with --batch")
    return (
        _whole_files(seen, data)
        or (None if data.stream else _runs(seen, data))
        or _elements(step_bytes, elements, overhead)
        or _Split(
            batch=1,
            sample_bytes=max(step_bytes - overhead, 1),
            found="a step's bytes taken for one sample",
            error="only the product of batch size and record length is known: give --batch",
        )
    )


def _whole_files(seen: Observation, data: DataFiles) -> _Split | None:
    """A file for each sample: most fetches read as many files, each of them whole."""
    numbers, whole, read = [], 0, 0
    for rank in seen.looked:
        chosen = rank.of_training & np.isin(rank.file_id, data.train)
        pair, place = np.unique(
            rank.fetch[chosen] * np.int64(len(seen.paths)) + rank.file_id[chosen], return_inverse=True
        )
        moved = np.bincount(place, weights=rank.length[chosen], minlength=len(pair))
        fetch, file_id = np.divmod(pair, len(seen.paths))
        numbers.append(np.unique(fetch, return_counts=True)[1])
        whole += int((moved >= WHOLE_FILE * seen.sizes[file_id]).sum())
        read += len(pair)
    counts = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    if not read or whole < MODAL_SHARE * read:
        return None
    most, share = modal(counts)
    if share < MODAL_SHARE:
        return None
    return _Split(
        batch=most,
        sample_bytes=float(seen.sizes[data.train].mean()),
        found=f"{100 * share:.3g} % of the batches read {most} whole files each",
        one_file_each=True,
    )


def _runs(seen: Observation, data: DataFiles) -> _Split | None:
    """Pieces without a gap, one or as many for each sample: their lengths repeat within a batch.

    Where they do not repeat, a batch is one sample, if most batches are as large.
    """
    parts = [runs_of(rank, data.train) for rank in seen.looked]
    place, moved, fetch = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    rank = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    if not len(place):
        return None
    first = np.flatnonzero(np.append(True, (np.diff(fetch) != 0) | (np.diff(rank) != 0)))
    count = np.diff(np.append(first, len(fetch)))
    most, share = modal(count)
    whole = first[count == most]
    table = np.stack([moved[whole + column] for column in range(most)], axis=1)
    period = next(width for width in range(1, most + 1) if most % width == 0 and _repeats(table, width))
    sizes = table.reshape(-1, period).sum(axis=1)
    size, agree = modal(sizes, weights=sizes)
    if agree < MODAL_SHARE:
        return None
    pieces = "one piece" if period == 1 else f"{period} pieces"
    return _Split(
        batch=most // period,
        sample_bytes=float(size),
        found=f"{most // period} times {size} B a step, in {pieces} without a gap each",
        error="" if share >= 0.9 else f"{100 * share:.3g} % of the steps have as many",
        distinct=round(_different_bytes(seen, data) / size),
    )


def _different_bytes(seen: Observation, data: DataFiles) -> int:
    """Bytes at different places of the data set that the looked-at ranks read."""
    places, lengths = [], []
    for rank in seen.looked:
        chosen = np.flatnonzero(rank.of_training & np.isin(rank.file_id, data.train) & (rank.length > 0))
        chosen = chosen[is_data(rank.length[chosen])]
        places.append(rank.file_id[chosen].astype(np.int64) << 44 | rank.offset[chosen])
        lengths.append(rank.length[chosen])
    _, first = np.unique(np.concatenate(places), return_index=True)
    return int(np.concatenate(lengths)[first].sum())


def _repeats(table: np.ndarray, width: int) -> bool:
    """Whether the columns of a table repeat after `width` of them."""
    return width == table.shape[1] or float((table[:, width:] == table[:, :-width]).mean()) >= REPEATED_SHARE


def runs_of(rank: RankReads, files: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of data reads of one batch without a gap: place (file and offset in one number), bytes and fetch of each.

    What an HDF5 library reads for itself has other lengths than most bytes do, and begins no run.
    """
    chosen = np.flatnonzero(rank.of_training & np.isin(rank.file_id, files) & (rank.length > 0))
    chosen = chosen[is_data(rank.length[chosen])]
    chosen = chosen[np.lexsort((rank.start_ns[chosen], rank.lane[chosen], rank.fetch[chosen]))]
    file_id, offset, length, fetch = (column[chosen] for column in (rank.file_id, rank.offset, rank.length, rank.fetch))
    lane = rank.lane[chosen]
    gap = offset[1:] - offset[:-1] - length[:-1]
    joined = (file_id[1:] == file_id[:-1]) & (gap >= 0) & (gap <= LIBRARY_GAP)
    joined &= (fetch[1:] == fetch[:-1]) & (lane[1:] == lane[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~joined))[: len(chosen)])
    moved = np.add.reduceat(length, first) if len(first) else length
    return file_id[first].astype(np.int64) << 44 | offset[first], moved, fetch[first]


def is_data(length: np.ndarray) -> np.ndarray:
    """bool (n,): reads of the lengths that carry the bytes, at least 2 % of them each; all where there are many."""
    values, place = np.unique(length, return_inverse=True)
    moved = np.bincount(place, weights=length, minlength=len(values))
    carrying = moved >= 0.02 * moved.sum()
    return carrying[place] if moved[carrying].sum() >= 0.8 * moved.sum() else np.ones(len(length), dtype=bool)


def _elements(step_bytes: float, elements: Mapping[str, float], overhead: int) -> _Split | None:
    """As many samples as a stage of the input pipeline produces for each step, if the number is whole."""
    for name, number in elements.items():
        nearest = round(number)
        if nearest >= 1 and abs(number - nearest) <= ELEMENTS_OFF * nearest:
            return _Split(
                batch=nearest,
                sample_bytes=max(step_bytes / nearest - overhead, 1),
                found=f"{number:.3g} spans {name} for each step",
            )
    return None


def modal(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[int, float]:
    """The most frequent value, and its share; with `weights` the one that weighs most."""
    found, place = np.unique(values, return_inverse=True)
    if not len(found):
        return 0, 0.0
    weight = np.bincount(place, weights=weights)
    best = int(weight.argmax())
    return int(found[best]), float(weight[best] / weight.sum())


def _epochs(
    passes: float, by_size: float, files: int, split: _Split, steps: int, ranks: int
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


def _loaded(seen: Observation, sizes: np.ndarray, split: _Split, steps: int) -> Samples:
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
            Estimate(
                key="reader.batch_size",
                value=1,
                found="all files are loaded before training: what a step takes is not seen",
                error="only the bytes of a file are known",
            ),
            Estimate(
                key="dataset.num_samples_per_file",
                value=per_file,
                found=f"{steps} steps shared by the files of a rank",
                error=relative(per_file * len(sizes), steps),
            ),
            Estimate(key="train.epochs", value=1, found="the files are read once"),
        ),
    )
