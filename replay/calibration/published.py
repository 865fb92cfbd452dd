"""What folders of results of DLIO and MLPerf Storage say of a job's steps, of their client and of their storage.

A run's folder has `summary.json`, `per_epoch_stats.json` and its configuration. DLIO's utilisation is the compute of
the steps after the first one, per cent of the time that they took; so the time of an epoch divides into its first step
and its later ones. A later step that takes longer than its compute waits for the storage or costs the client time; no
result says which. Two lower bounds of the storage's rate that agree, of steps and of the first step, in which all
readers start at once, say that it is the storage, or the processors of the readers. The first step also bounds what a
reader needs for a sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

from dxt_replay.replay.simulation.model import Client, Limit, Rate, RequestTime, StorageModel, Time, document_of
from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.files import record_length
from dxt_replay.workloads.source import CONFIGURATIONS, read_workload

AT_LEAST_PCT = 95.0
"""Utilisation above which ranks hardly wait, so that the storage did what it was asked for, and may do more."""

AGREE = 0.10  # By how much two bounds may differ that agree: rates of epochs of one run differ by up to 8 %

SLOWEST = 0.08
"""What the slowest rank's step costs more with each doubling of the ranks, as a share of the mean cost. The step tables
of MLPerf Storage v1.0's E1000 (15 ranks, 1,100 steps) have 8, 16, 24 and 31 % for 2, 4, 8 and 15 ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSteps:
    """Steps of all runs with a number of ranks: medians over the epochs after the first one, or of that one alone.

    processors: of a host; 0 where the result does not say. steps: of an epoch. cost_ms: what a later step takes beyond
    its compute.
    steady_bytes_per_s: what later steps took in; first_bytes_per_s: what the readers of the first step took in, None
    where tf.data reads. Both are lower bounds of the storage; `storage_limits` where they agree and ranks waited, which
    a limit of the readers' processors would cause, too.
    sample_ms: processor time of a reader for a sample at most, as if nothing else held the first step up; None where
    tf.data reads, or where the readers outnumber the processors."""

    ranks: int
    hosts: int
    processors: int
    runs: int
    epochs: int
    steps: int
    utilisation_pct: float
    epoch_s: float
    first_step_ms: float
    later_step_ms: float
    cost_ms: float
    steady_bytes_per_s: float
    first_bytes_per_s: float | None
    sample_ms: float | None

    @property
    def storage_limits(self) -> bool | None:
        """None where the result does not say."""
        if self.utilisation_pct > AT_LEAST_PCT:
            return False
        rates = sorted((self.steady_bytes_per_s, self.first_bytes_per_s or 0.0))
        return True if rates[1] <= (1 + AGREE) * rates[0] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Results of one workload. by_ranks: ascending. left_out: folders that have no training, and why."""

    workload: str
    compute_ms: float
    batch_bytes: float
    record_bytes: float
    by_ranks: tuple[PublishedSteps, ...]
    left_out: Mapping[str, str]

    def model(self, name: str) -> StorageModel:
        """A storage that costs the client what these steps cost, with a limit of its rate where one showed.

        The fewest ranks give the cost of a step, more ranks what a meeting adds: with one number of ranks, that the
        slowest rank costs more (SLOWEST). The limit is the rate of the first step: later ones also use up what its
        readers had read ahead."""
        free = [each for each in self.by_ranks if not each.storage_limits]
        rates = [each.first_bytes_per_s or each.steady_bytes_per_s for each in self.by_ranks if each.storage_limits]
        samples = [each.sample_ms for each in self.by_ranks if each.sample_ms]
        most, costs_ms = self.by_ranks[-1], {each.ranks: each.cost_ms for each in free}
        step_ms = free[0].cost_ms if free else 0.0
        if len(free) == 1:
            costs_ms[2 * free[0].ranks] = (1 + SLOWEST) * step_ms
        client = Client(
            step_ns=Time(1e6 * step_ms),
            meeting_ns={ranks: Time(1e6 * max(cost_ms - step_ms, 0.0)) for ranks, cost_ms in costs_ms.items()},
            sample=RequestTime.affine(0.0, 1e3 * self.record_bytes / min(samples)) if samples else None,
            processors=most.processors if samples else 0,
        )
        about = f"from results of {self.workload} with {', '.join(str(each.ranks) for each in self.by_ranks)} ranks"
        if not rates:
            about += "; no limit of the storage showed, so that all time beyond compute is taken for the client's own"
        limits = [Limit(name="rate", each="system", operations=("read",), per_s=Rate(max(rates)))] if rates else []
        return StorageModel(
            name=name,
            about=about,
            ranks_per_node=-(-most.ranks // most.hosts) if most.hosts > 1 else 0,
            client=client if free or samples else None,
            limits=tuple(limits),
        )

    def document(self) -> dict[str, Any]:
        """The storage model, as `read_storage_model` reads it."""
        return document_of(self.model(f"{self.workload}-results"))

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay calibrate --json` prints of a folder of results."""
        return {
            "workload": self.workload,
            "compute_ms": self.compute_ms,
            "batch_bytes": self.batch_bytes,
            "by_ranks": [{**asdict(each), "storage_limits": each.storage_limits} for each in self.by_ranks],
            "left_out": dict(self.left_out),
        }


def is_published(folder: Path, depth: int = 3) -> bool:
    """Whether a folder holds results: it is the folder of a run, or all folders in it hold results."""
    if (folder / "summary.json").is_file() or depth == 0 or not folder.is_dir():
        return (folder / "summary.json").is_file()
    inner = [each for each in folder.iterdir() if each.is_dir()]
    return bool(inner) and all(is_published(each, depth - 1) for each in inner)


def published_results(folder: Path) -> Published:
    """The results in a folder of runs of one workload, which may differ in their number of ranks.

    Raises: UsageError for a folder without runs that trained, for runs of several workloads, and for files that DLIO
    does not write."""
    left_out: dict[str, str] = {}
    found: dict[tuple[str, float, float, float], dict[int, list[PublishedSteps]]] = {}
    for summary in sorted(folder.rglob("summary.json")):
        place, metric = summary.parent, _document(summary).get("metric")
        if not any((place / each / "config.yaml").is_file() for each in CONFIGURATIONS):
            left_out[str(place)] = "it has no configuration"
            continue
        workload = read_workload(place).workload
        if not isinstance(metric, Mapping) or not metric.get("train_au_percentage") or not workload.workflow.train:
            left_out[str(place)] = "it did not train"
            continue
        steps = _steps_of(place, _document(summary), workload)
        found.setdefault(_kind(workload), {}).setdefault(steps.ranks, []).append(steps)
    if not found:
        why = next(iter(left_out.values()), "it has no summary.json")
        raise UsageError(f"{folder} has no results of a run that trained: {why}; give the folder of a run of DLIO")
    if len(found) > 1:
        kinds = " and ".join(
            f"{name} with {compute:g} ms and {batch:,.0f} B a step" for name, compute, batch, _ in found
        )
        raise UsageError(f"{folder} has results of several workloads ({kinds}): give the folder of one of them")
    ((name, compute_ms, batch, record), runs), *_ = found.items()
    return Published(
        workload=name,
        compute_ms=compute_ms,
        batch_bytes=batch,
        record_bytes=record,
        by_ranks=tuple(_together(each) for _, each in sorted(runs.items())),
        left_out=left_out,
    )


def _kind(workload: Workload) -> tuple[str, float, float, float]:
    name = workload.model.name if workload.model.name != "default" else workload.dataset.format
    record = record_length(workload.dataset)
    return name, 1e3 * workload.train.computation_time.mean_s, workload.reader.batch_size * record, record


def _steps_of(place: Path, summary: Mapping[str, Any], workload: Workload) -> PublishedSteps:
    """The steps of one run. Raises: UsageError for a damaged result."""
    try:
        ranks, hosts = int(summary["num_accelerators"]), int(summary.get("num_hosts") or 1)
        shares = [float(each) / 100 for each in summary["metric"]["train_au_percentage"]]
        per_epoch = min(place.glob("*per_epoch_stats.json"), key=lambda path: (len(path.name), path.name))
        blocks = [_seconds(each["block1"]) for each in _document(per_epoch).values() if "block1" in each]
        processors = min(map(int, summary.get("host_cpu_count") or [0]))
        return steps_of(workload, ranks, blocks, shares, hosts=hosts, processors=processors)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{place} is not a result of DLIO that can be read: {error}") from error


def steps_of(
    workload: Workload, ranks: int, blocks: Sequence[float], shares: Sequence[float], *, hosts: int, processors: int
) -> PublishedSteps:
    """The steps of a run of `ranks` ranks from the durations of its epochs, s, and its utilisations, up to 1.

    Raises: ValueError for what no run has."""
    reader, data = workload.reader, workload.dataset
    steps = data.num_files_train * data.num_samples_per_file // (reader.batch_size * ranks)
    if len(blocks) != len(shares) or steps < 2 or not all(0 < each <= 1.01 for each in shares):
        raise ValueError(f"{len(blocks)} blocks, {len(shares)} utilisations and {steps} steps of {ranks} ranks")
    compute_s = workload.train.computation_time.mean_s
    rest = slice(1 if len(blocks) > 1 else 0, None)
    later_s = [compute_s / share for share in shares[rest]]
    first_s = [block - (steps - 1) * later for block, later in zip(blocks[rest], later_s, strict=True)]
    batch = ranks * reader.batch_size * record_length(data)
    first, later = median(first_s), median(later_s)
    at_once = reader.data_loader == "pytorch" and first > later
    readers = max(reader.read_threads, 1)
    return PublishedSteps(
        ranks=ranks,
        hosts=hosts,
        processors=processors,
        runs=1,
        epochs=len(later_s),
        steps=steps,
        utilisation_pct=100 * compute_s / later,
        epoch_s=median(blocks[rest]),
        first_step_ms=1e3 * first,
        later_step_ms=1e3 * later,
        cost_ms=1e3 * max(later - compute_s, 0.0),
        steady_bytes_per_s=batch / later,
        first_bytes_per_s=readers * batch / first if at_once else None,
        sample_ms=1e3 * (first - later) / reader.batch_size / _slowest_batch(workload, ranks)
        if at_once and ranks * readers <= (processors or math.inf) * hosts
        else None,
    )


def _slowest_batch(workload: Workload, ranks: int) -> float:
    """Bytes of the largest of the ranks' batches over those of a mean one, as expected of normal deviations. Those of
    files are smaller than the description's by a factor of the square root of 2 (see `data_set_files`)."""
    data = workload.dataset
    deviation = 0.0 if data.record_dims else data.record_length_bytes_stdev / math.sqrt(2) / data.record_length_bytes
    return 1 + deviation / math.sqrt(workload.reader.batch_size) * NormalDist().inv_cdf(
        (ranks - 0.375) / (ranks + 0.25)
    )


def _together(runs: Sequence[PublishedSteps]) -> PublishedSteps:
    """The median of each figure over runs with one number of ranks."""
    figures = {name: [asdict(each)[name] for each in runs] for name in asdict(runs[0])}
    medians = {name: None if None in values else median(values) for name, values in figures.items()}
    whole = {name: round(medians[name] or 0) for name in ("ranks", "hosts", "processors", "steps")}
    return PublishedSteps(**{**medians, **whole, "runs": len(runs), "epochs": sum(figures["epochs"])})


def _seconds(block: Mapping[str, Any]) -> float:
    """The duration of a block: between its times, which have microseconds; what is stated is rounded."""
    return (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"])).total_seconds()


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a JSON object")
    return found
