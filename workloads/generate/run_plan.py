"""The course of a generated run: passes over the data, checkpoints and meetings, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.sample_order import Share, share


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
class Meeting:
    """A meeting of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint between steps, written by the ranks that hold a part of it. number: counted over the run."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStep:
    """A checkpoint as a step of its own, in a run without training: a pause, a meeting, and the checkpoint.

    number: of the checkpoint. loads: whether it is read; else it is written.
    step: number over the run, from 1.
    """

    number: int
    loads: bool
    step: int


Segment = Pass | Meeting | Save | CheckpointStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run: its segments in order. train, evaluation: how the data sets are divided.

    checkpoints: (epoch, step) of each checkpoint, as the names of their folders have them.
    """

    segments: tuple[Segment, ...]
    train: Share
    evaluation: Share
    checkpoints: tuple[tuple[int, int], ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of training and evaluation."""
        return tuple(segment for segment in self.segments if isinstance(segment, Pass))

    @property
    def training_steps(self) -> int:
        """Training steps of each rank."""
        return sum(each.steps for each in self.passes if not each.evaluation)

    @property
    def steps(self) -> int:
        """Steps of each rank, those of evaluations and checkpoints included."""
        checkpoints = sum(isinstance(segment, CheckpointStep) for segment in self.segments)
        return sum(each.steps for each in self.passes) + checkpoints


def run_plan(workload: Workload, ranks: int) -> RunPlan:
    """The run of a workload on `ranks` ranks.

    Raises: UsageError if it would have no training step; the message says what to change.
    """
    train = share(workload, ranks, evaluation=False)
    evaluation = share(workload, ranks, evaluation=True)
    builder = _Builder(workload, train, evaluation)
    builder.training() if workload.workflow.train else builder.checkpoints_only()
    plan = RunPlan(
        segments=tuple(builder.segments),
        train=train,
        evaluation=evaluation,
        checkpoints=tuple(builder.checkpoints),
    )
    if not plan.steps or (workload.workflow.train and not train.steps):
        raise UsageError(_no_steps(workload, ranks))
    return plan


def _no_steps(workload: Workload, ranks: int) -> str:
    data, reader = workload.dataset, workload.reader
    if not workload.workflow.train:
        return (
            "the workload neither trains nor writes checkpoints: set workflow.train, or workflow.checkpoint with "
            "checkpoint.num_checkpoints_write"
        )
    samples, needed = data.num_files_train * data.num_samples_per_file, reader.batch_size * ranks
    if workload.reading == "head" and samples >= needed:
        return (
            f"the reading head uses files in multiples of samples per file x batch x ranks = "
            f"{data.num_samples_per_file * needed}, and there are {data.num_files_train}: no step is left; give more "
            "files, or --reading documented"
        )
    if workload.reading == "v3.0" and data.num_files_train < ranks:
        return (
            f"the reading v3.0 deals whole files to the ranks, and there are {data.num_files_train} files for {ranks} "
            "ranks: give at least as many files as ranks"
        )
    return (
        f"the training set has {samples} samples and a step of {ranks} ranks takes {needed}: no step is left; give "
        "fewer ranks, a smaller reader.batch_size or more dataset.num_files_train"
    )


class _Builder:
    def __init__(self, workload: Workload, train: Share, evaluation: Share) -> None:
        self._workload, self._train, self._evaluation = workload, train, evaluation
        self._fetches, self._steps = 0, 0
        self.segments: list[Segment] = []
        self.checkpoints: list[tuple[int, int]] = []

    def training(self) -> None:
        """All epochs with their checkpoints and evaluations."""
        workload = self._workload
        flow, train, saving = workload.workflow, workload.train, workload.checkpoint
        next_save, next_evaluation = saving.checkpoint_after_epoch, workload.evaluation.eval_after_epoch
        for epoch in range(1, train.epochs + 1):
            steps = self._steps_of_epoch()
            saves = tuple(self._saves_in(epoch, steps)) if flow.checkpoint else ()
            self._pass(epoch, steps, self._extra(steps), evaluation=False, saves=saves)
            if saves:
                self.segments.append(Meeting())
            if flow.checkpoint and saving.steps_between_checkpoints is None and epoch == next_save:
                next_save += saving.epochs_between_checkpoints
                self._save(epoch, steps + 1)
            if flow.evaluation and epoch >= next_evaluation:
                next_evaluation += workload.evaluation.epochs_between_evals
                self._pass(epoch, self._evaluation.steps, 0, evaluation=True)
            if epoch < train.epochs and self.segments and not isinstance(self.segments[-1], Meeting):
                self.segments.append(Meeting())

    def _steps_of_epoch(self) -> int:
        most, limit = self._train.steps, self._workload.train.total_training_steps
        if limit is None:
            return most
        done = 0 if self._workload.reading != "documented" else self._training_steps()
        return max(min(most, limit - done), 0)

    def _training_steps(self) -> int:
        return sum(each.steps for each in self.segments if isinstance(each, Pass) and not each.evaluation)

    def _extra(self, steps: int) -> int:
        """Batches that are fetched and not used: the loop ends when it has fetched one too many."""
        workload = self._workload
        if workload.reading == "documented" or workload.reader.data_loader == "synthetic":
            return 0
        tfrecord = workload.reader.data_loader == "tensorflow" and workload.dataset.format == "tfrecord"
        return int((tfrecord and workload.train.epochs > 1) or steps < self._train.steps)

    def _saves_in(self, epoch: int, steps: int) -> Iterator[tuple[int, int]]:
        every = self._workload.checkpoint.steps_between_checkpoints
        if every is None or every <= 0:
            return
        done = self._training_steps() if self._workload.reading == "documented" else 0
        for step in range(every - done % every, steps + 1, every):
            yield step, self._number(epoch, step)

    def _number(self, epoch: int, step: int) -> int:
        self.checkpoints.append((epoch, step))
        return len(self.checkpoints) - 1

    def _save(self, epoch: int, step: int) -> None:
        self.segments.append(Save(number=self._number(epoch, step)))

    def _pass(
        self, epoch: int, steps: int, extra: int, *, evaluation: bool, saves: tuple[tuple[int, int], ...] = ()
    ) -> None:
        if not steps + extra:
            return
        self.segments.append(
            Pass(
                evaluation=evaluation,
                epoch=epoch,
                fetches=steps + extra,
                steps=steps,
                first_fetch=self._fetches,
                first_step=self._steps + 1,
                saves=saves,
            )
        )
        self._fetches += steps + extra
        self._steps += steps

    def checkpoints_only(self) -> None:
        """A run that writes checkpoints and then reads them."""
        saving = self._workload.checkpoint
        if not self._workload.workflow.checkpoint:
            return
        for loads, count in ((False, saving.num_checkpoints_write), (True, saving.num_checkpoints_read)):
            for number in range(count):
                if number >= len(self.checkpoints):
                    self._number(1, number + 1)
                self._steps += 1
                self.segments.append(CheckpointStep(number=number, loads=loads, step=self._steps))
                if saving.rank_sync:
                    self.segments.append(Meeting())
