"""The course of a generated run: how the data set is divided, and passes over it, checkpoints and meetings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The division of a data set over the ranks in one pass over it.

    files: files that are used, the first ones in reading order. samples_per_file: samples in each.
    ranks, batch: ranks of the job, and samples that a rank fetches at a time.
    steps: steps of each rank. per_rank: samples assigned to a rank. dealt: whether whole files are dealt to the ranks.
    subfolders: number over which the files are spread.
    """

    files: int
    samples_per_file: int
    ranks: int
    batch: int
    steps: int
    per_rank: int
    dealt: bool = False
    subfolders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the data of training or evaluation.

    evaluation: whether it is an evaluation, whose steps have no barrier. epoch: from 1.
    fetches: batches that are fetched. steps: those of them that a step uses, the first ones.
    first_fetch, first_step: their numbers over the whole run, from 0 and from 1.
    saves: (steps done, number of the checkpoint), where a checkpoint follows a step.
    """

    evaluation: bool
    epoch: int
    fetches: int
    steps: int
    first_fetch: int
    first_step: int
    saves: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What lies between passes: a meeting of all ranks if `saved` is None, else a checkpoint, written by the ranks that
    hold a part of it.

    saved: number of the checkpoint over the run. loads: whether it is read; else it is written.
    step: number over the run, from 1, of a checkpoint that is a step of its own, in a run without training: a pause, a
    meeting, and the checkpoint.
    """

    saved: int | None = None
    loads: bool = False
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run: its segments in order. train, evaluation: how the data sets are divided.

    checkpoints: (epoch, step) of each checkpoint, as the names of their folders have them.
    """

    segments: tuple[Pass | Between, ...]
    train: Share
    evaluation: Share
    checkpoints: tuple[tuple[int, int], ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of training and evaluation."""
        return tuple(segment for segment in self.segments if isinstance(segment, Pass))

    @property
    def steps(self) -> int:
        """Steps of each rank, those of evaluations and checkpoints included."""
        return sum(each.steps if isinstance(each, Pass) else each.step is not None for each in self.segments)

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """The training steps as `BenchmarkRun.blocks`: a checkpoint, or the end of an epoch, ends a block."""
        for each in self.passes:
            if not each.evaluation and each.steps:
                ends = sorted({*(done for done, _ in each.saves), each.steps})
                for begin, end in zip([0, *ends], ends, strict=False):
                    yield each.epoch, each.first_step + begin, each.first_step + end - 1


def share(workload: Workload, ranks: int, *, evaluation: bool) -> Share:
    """The share of the training set, or of the set for evaluation. All ranks have equally many steps.

    PyTorch: whole files are dealt to the ranks, as many to each, if each gets a batch of them. Else the samples of all
    files are divided, and rank r has those from r `per_rank` on.
    """
    data, reader, per_file = workload.dataset, workload.reader, workload.dataset.num_samples_per_file
    files = data.num_files_eval if evaluation else data.num_files_train
    batch = reader.batch_size_eval if evaluation else reader.batch_size
    dealt = reader.data_loader == "pytorch" and files // ranks * per_file >= batch
    steps = files // ranks * per_file // batch if dealt else files * per_file // batch // ranks
    return Share(
        files=files,
        samples_per_file=per_file,
        ranks=ranks,
        batch=batch,
        steps=steps,
        per_rank=steps * batch,
        dealt=dealt,
        subfolders=data.num_subfolders_eval if evaluation else data.num_subfolders_train,
    )


def run_plan(workload: Workload, ranks: int) -> RunPlan:
    """The run of a workload on `ranks` ranks.

    Raises: UsageError if it would have no training step; the message says what to change.
    """
    train, evaluation = (share(workload, ranks, evaluation=each) for each in (False, True))
    checkpoints: list[tuple[int, int]] = []
    make = _training if workload.workflow.train else _checkpoints_only
    segments = tuple(make(workload, train, evaluation, checkpoints))
    plan = RunPlan(segments=segments, train=train, evaluation=evaluation, checkpoints=tuple(checkpoints))
    if workload.workflow.train and not train.steps:
        data = workload.dataset
        samples, needed = data.num_files_train * data.num_samples_per_file, workload.reader.batch_size * ranks
        raise UsageError(
            f"the training set has {samples} samples and a step of {ranks} ranks takes {needed}: no step is left; give "
            "fewer ranks, a smaller reader.batch_size or more dataset.num_files_train"
        )
    return plan


def _training(
    workload: Workload, shared: Share, evaluation: Share, checkpoints: list[tuple[int, int]]
) -> Iterator[Pass | Between]:
    """All epochs with their checkpoints and evaluations. `checkpoints` gets the epoch and step of each checkpoint.

    Steps are counted over the run, as DLIO's documentation says (its code counts anew in each epoch). The loop ends
    when it has fetched a batch too many, in several epochs of TFRecord and where steps are limited."""
    flow, train, saving = workload.workflow, workload.train, workload.checkpoint
    next_save, next_evaluation = saving.checkpoint_after_epoch, workload.evaluation.eval_after_epoch
    every, limit = saving.steps_between_checkpoints if flow.checkpoint else None, train.total_training_steps
    tfrecord = workload.reader.data_loader == "tensorflow" and workload.dataset.format == "tfrecord"
    fetches, step, trained, began, met = 0, 1, 0, False, False
    for epoch in range(1, train.epochs + 1):
        steps = shared.steps if limit is None else max(min(shared.steps, limit - trained), 0)
        extra = int(steps > 0 and ((tfrecord and train.epochs > 1) or steps < shared.steps))
        ends = range(every - trained % every, steps + 1, every) if every else ()
        saves = tuple((end, len(checkpoints) + place) for place, end in enumerate(ends))
        checkpoints += [(epoch, end) for end in ends]
        for of_evaluation in (False, True):
            if of_evaluation:
                if not flow.evaluation or epoch < next_evaluation:
                    continue
                next_evaluation += workload.evaluation.epochs_between_evals
                steps, extra, saves = evaluation.steps, 0, ()
            if steps + extra:
                yield Pass(
                    evaluation=of_evaluation,
                    epoch=epoch,
                    fetches=steps + extra,
                    steps=steps,
                    first_fetch=fetches,
                    first_step=step,
                    saves=saves,
                )
                fetches, step, began, met = fetches + steps + extra, step + steps, True, False
            if of_evaluation:
                continue
            trained += steps
            if saves:
                yield Between()
                met = True
            if flow.checkpoint and saving.steps_between_checkpoints is None and epoch == next_save:
                next_save += saving.epochs_between_checkpoints
                checkpoints.append((epoch, steps + 1))
                yield Between(saved=len(checkpoints) - 1)
                began, met = True, False
        if epoch < train.epochs and began and not met:
            yield Between()
            met = True


def _checkpoints_only(
    workload: Workload, shared: Share, evaluation: Share, checkpoints: list[tuple[int, int]]
) -> Iterator[Between]:
    """A run that writes checkpoints and then reads them."""
    saving, step = workload.checkpoint, 0
    for loads, count in ((False, saving.num_checkpoints_write), (True, saving.num_checkpoints_read)):
        for number in range(count):
            if number >= len(checkpoints):
                checkpoints.append((1, number + 1))
            step += 1
            yield Between(saved=number, loads=loads, step=step)
            if saving.rank_sync:
                yield Between()
