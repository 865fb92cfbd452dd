"""What DLIO's own code does with a fitted description: the number of files and steps it uses, and where it stops. Pure.

Sources: `main.py` and `utils/statscounter.py` at commit e1919d7 (head), and the branch mlperf_storage_v2.0 (v2.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import format_bytes, format_count, format_counted
from dxt_replay.workloads.data_set_files import data_set_files
from dxt_replay.workloads.description import Reading, Workload
from dxt_replay.workloads.generate.run_plan import run_plan
from dxt_replay.workloads.generate.sample_order import share
from dxt_replay.workloads.workload_values import workload_from_values

VERSIONS: Mapping[Reading, str] = {"head": "DLIO's main branch of June 2026", "v2.0": "DLIO v2.0"}
"""Readings that follow DLIO's code -> the version. v3.0 is missing: it was not compared with a run."""


STOPS, HANGS = "it stops", "wait for it for ever"
MULTIPLES = "multiples of samples per file x batch x ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DlioRun:
    """A run of a description by a version of DLIO, at the ranks of the capture.

    files, steps: training files that it uses, and training steps of a rank over all epochs, or until it hangs.
    all_files, all_steps: those of the description. evaluation_steps: steps of one evaluation.
    trouble: why the run differs from the description; empty if it does not.
    remedy: overrides with which DLIO takes the described number of steps; empty if none help or none are needed.
    """

    reading: Reading
    files: int
    steps: int
    all_files: int
    all_steps: int
    evaluation_steps: int
    trouble: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The run for a person."""
        who = VERSIONS[self.reading]
        if not self.trouble:
            return f"{who} runs this as it is on as many ranks: {format_counted(self.steps, 'training step')} of each."
        remedy = f" Give it {self.remedy}." if self.remedy else ""
        return f"{who} does not run this as it is on as many ranks: {self.trouble}.{remedy}"


def dlio_runs(values: Mapping[str, Any], ranks: int) -> tuple[DlioRun, ...]:
    """How each version runs the nested values of a description, on `ranks` ranks.

    Raises: UsageError for values that contradict each other under every reading.
    """
    asked = workload_from_values(values, reading="documented")[0]
    return tuple(_run(values, asked, reading, ranks) for reading in VERSIONS)


def _run(values: Mapping[str, Any], asked: Workload, reading: Reading, ranks: int) -> DlioRun:
    wanted = share(asked, ranks, evaluation=False)
    all_steps = run_plan(asked, ranks).training_steps if wanted.steps else 0
    files = steps = evaluation_steps = 0
    try:
        workload = workload_from_values(values, reading=reading)[0]
        trouble = "; ".join(_troubles(asked, workload, ranks))
        if not trouble.startswith(STOPS):
            used = share(workload, ranks, evaluation=False)
            files = used.files
            steps = run_plan(workload, ranks).training_steps if used.steps and HANGS not in trouble else used.steps
            evaluation_steps = share(workload, ranks, evaluation=True).steps if workload.workflow.evaluation else 0
    except UsageError as error:
        trouble = f"{STOPS}: {error}"
    if not trouble and steps != all_steps:
        trouble = f"it takes {format_count(steps)} training steps instead of {format_count(all_steps)}"
    return DlioRun(
        reading=reading,
        files=files,
        steps=steps,
        all_files=wanted.files,
        all_steps=all_steps,
        evaluation_steps=evaluation_steps,
        trouble=trouble,
        remedy=_remedy(asked, ranks) if MULTIPLES in trouble else "",
    )


def _troubles(asked: Workload, workload: Workload, ranks: int) -> Iterator[str]:
    data, limit = asked.dataset, asked.train.total_training_steps
    enough = data.num_files_train * data.num_samples_per_file // (asked.reader.batch_size * ranks)
    if limit is not None and limit > enough:
        yield f"{STOPS}, as {limit} steps are asked for and the samples suffice for {enough}"
        return
    for evaluation in (False, True)[: 1 + asked.workflow.evaluation]:
        what = "evaluation" if evaluation else "training"
        wanted, used = (share(each, ranks, evaluation=evaluation) for each in (asked, workload))
        most = wanted.steps if evaluation or limit is None else min(limit, wanted.steps)
        if workload.reading == "head" and used.steps < most:
            yield (
                f"of {what} files it uses {MULTIPLES} = "
                f"{format_count(_multiple(wanted.samples_per_file, wanted.batch, ranks))}, so "
                f"{format_count(used.files)} of {format_count(wanted.files)}: {format_count(used.steps)} of "
                f"{format_counted(most, 'step')} of an {'evaluation' if evaluation else 'epoch'}"
            )
        elif used.steps < most:
            yield (
                f"in {what} the last rank has samples for {format_counted(used.steps, 'step')}, and the others, which "
                f"have more, {HANGS}"
            )


def _multiple(samples_per_file: int, batch: int, ranks: int) -> int:
    return samples_per_file * batch * ranks


def _remedy(asked: Workload, ranks: int) -> str:
    """Overrides with which the main branch takes the described number of steps: more files, and a limit per epoch."""
    data, limit = asked.dataset, asked.train.total_training_steps
    words = []
    for evaluation, key in ((False, "dataset.num_files_train"), (True, "dataset.num_files_eval")):
        if evaluation and not asked.workflow.evaluation:
            continue
        wanted = share(asked, ranks, evaluation=evaluation)
        steps = wanted.steps if evaluation or limit is None else min(limit, wanted.steps)
        # `_multiple` is the number of files that yields samples_per_file ** 2 steps.
        times = -(-steps // data.num_samples_per_file**2)
        files = times * _multiple(data.num_samples_per_file, wanted.batch, ranks)
        words.append(f"{key}={files}")
        if not evaluation and times * data.num_samples_per_file**2 > steps:
            words.append(f"train.total_training_steps={steps}")
    files = int(words[0].partition("=")[2])
    sizes = data_set_files(asked).train
    grown = sizes.total_bytes / max(len(sizes), 1) * files
    return f"{' '.join(words)} ({format_bytes(grown)} of training files instead of {format_bytes(sizes.total_bytes)})"
