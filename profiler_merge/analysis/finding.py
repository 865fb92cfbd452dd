"""One finding, what is at stake, and the values from which findings are made, each with its reason.

"Drishti" is drishti-io's includes/config.py; "the DLIO paper" is Devarajan et al., DLIO: A Data-Centric Benchmark for
Scientific Deep Learning Applications, CCGrid 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dxt_replay.traces.plain import plain

NOTICEABLE_PCT = 1.0
"""Per cent of the training loop, or of a run without a known loop, below which a perfect remedy gains too little."""
MATERIAL_PCT = 5.0
"""Per cent of the training loop: for MLPerf Storage, runs that differ by less repeat the same result."""
SERIOUS_PCT = 20.0
"""Per cent of the training loop: a fifth of the accelerators' time; DLIO's applications spent 12 to 36 % in I/O."""
MLPERF_LEAST_PCT = {"unet3d": 90.0, "resnet50": 90.0, "cosmoflow": 70.0, "retinanet": 85.0, "flux": 90.0, "dlrm": 70.0}
"""Accelerator utilisation that MLPerf Storage v2.0 (the first three workloads) and v3.0 require."""
LEAST_UTILISATION_PCT = MLPERF_LEAST_PCT["unet3d"]
"""Required of any other training too: longer waits for input are a finding."""
MOSTLY_STORAGE_PCT = 50.0
"""Per cent of the input wait with storage busy, from which the wait counts as mostly for storage."""
SMALL_REQUEST_PCT = 10.0
"""Per cent of the requests that are small: Drishti, small_requests."""
LEAST_REQUESTS = 100
"""Requests below which a share means little; Drishti wants 1000, which short captures do not reach."""
RANDOM_PCT = 20.0
"""Per cent of the accesses that are random: Drishti, random_operations."""
MISALIGNED_PCT = 10.0
"""Per cent of the requests that begin beside a border: Drishti, misaligned_requests."""
SHARED_FILE_PCT = 50.0
"""Per cent of the bytes in one file of several ranks."""
READS_PER_REQUEST = 4.0
"""POSIX reads that carry out one H5Dread. Index blocks and a chunk border make two or three; more are small chunks."""
SMALL_CHUNK_BYTES = 64 << 10
"""Chunks below it are small: from 64 KiB on, the chunk size no longer changes Cosmic Tagger's op stream (DLIO
paper)."""
CONSECUTIVE_PCT = 50.0
"""Per cent of an HDF5 file's reads that continue the previous one: above it, requests were cut into chunks."""
ONE_AT_A_TIME = 1.05
"""Mean operations in flight while any is: two readers that overlap a twentieth of the time are as good as one."""
HIDDEN_PCT = 10.0
"""Per cent of the I/O time: Cosmic Tagger hides 10 % in the DLIO paper, which counts it as not overlapping."""
REREAD_PCT = 50.0
"""Per cent of the bytes read. Drishti has the same rule: more bytes read than the file has."""
LEAST_REREAD_BYTES = 1 << 20
"""Bytes that may be read again without a finding: headers and indices are read many times."""
IMBALANCE_PCT = 30.0
"""(max - min) / max over the ranks, per cent: Drishti, imbalance_size."""
METADATA_RANK_S = 30.0
"""Seconds in metadata operations of one rank: Drishti, metadata_time_rank."""
STRETCHED = 2.0
"""Time from a step with a checkpoint to the next, as a multiple of that of the others: saving costs a step or more."""
WARM_UP = 2.0
"""First step as a multiple of the median of the others: compiling, filling buffers and opening files lengthen
it once."""

SEVERITIES = ("high", "warning", "info")
"""Severities, worst first: likely to dominate the run; worth the remedy; good to know."""

LOOP, RUN = "training loop", "run"
"""What gains from a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of the job. Its fields are the columns of the table "findings".

    `code`: the name by which programs know it. `severity`: one of SEVERITIES.
    `title`, `evidence`, `threshold`, `remedy`: sentences for a person.
    `at_stake_s`: upper bound of the gain from the remedy; None where that is not known.
    `at_stake_pct`: the same in per cent of `at_stake_of`, the training loop or the run.
    `values`: the numbers of the evidence, units in the names; `files`: paths of the worst files.
    """

    code: str
    severity: str
    title: str
    evidence: str
    threshold: str
    remedy: str
    at_stake_s: float | None = None
    at_stake_pct: float | None = None
    at_stake_of: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A member of the list that `dxt-replay summary --show findings --json` prints."""
        return dict(plain(self))


@dataclass(frozen=True, slots=True)
class Stake:
    """Upper bound of the gain from a remedy. `whole_s`: duration of the loop or run that gains; `of`: its name."""

    seconds: float
    whole_s: float
    of: str

    @property
    def pct(self) -> float:
        """Per cent of the whole; 100 if the length of the whole is not known."""
        return min(100 * self.seconds / self.whole_s, 100.0) if self.whole_s > 0 else 100.0

    @property
    def matters(self) -> bool:
        """Whether the gain is large enough for a finding."""
        return self.seconds > 0 and self.pct >= NOTICEABLE_PCT

    def columns(self) -> dict[str, Any]:
        """The fields of a `Finding` about what is at stake."""
        severity = SEVERITIES[(self.pct < SERIOUS_PCT) + (self.pct < MATERIAL_PCT)]
        return {
            "severity": severity, "at_stake_s": self.seconds, "at_stake_pct": self.pct, "at_stake_of": self.of,
        }  # fmt: skip
