"""The public names. Type checkers read them; `__init__.py` imports each when it is first used."""

from .profiler_merge.analysis.finding import Finding
from .profiler_merge.analysis.named_tables import Views
from .profiler_merge.analysis.summary import Summary
from .profiler_merge.analysis.timeline import Timeline
from .profiler_merge.export.exported import Exported
from .profiler_merge.merge import MergeResult
from .profiler_merge.recording import keras_recording, lightning_recording, recording
from .replay.anonymize import Anonymized
from .replay.calibration.calibration import Calibration
from .replay.capacity import Capacity
from .replay.compare.comparison import Comparison
from .replay.compare.noise import NoiseFloor
from .replay.compare.verdict import Thresholds
from .replay.doctor import Diagnosis
from .replay.interface.analyses import TABLES, findings, storage_limit, summary, table, tables, timeline
from .replay.interface.anonymizing import anonymize
from .replay.interface.calibrations import calibrate
from .replay.interface.capacities import capacity
from .replay.interface.captures import open_capture, part
from .replay.interface.charts import FIGURES, figure
from .replay.interface.comparisons import compare, noise_floor, regress
from .replay.interface.descriptions import FittedWorkload, fit
from .replay.interface.examining import doctor
from .replay.interface.exports import Report, export, report
from .replay.interface.generating import GeneratedCapture, generate, workloads
from .replay.interface.histories import history
from .replay.interface.many_jobs import merge_each, summarise_each
from .replay.interface.merging import merge
from .replay.interface.recordings import Recorded, record
from .replay.interface.replays import Staged, run, run_repeatedly, stage, unstage
from .replay.interface.simulations import Simulated, simulate
from .replay.interface.transforming import transform
from .replay.interface.verifying import verify
from .replay.jobs import JobSummaries, MergedJobs
from .replay.options.choices import FORMATS, RunChoices
from .replay.regress.comparison import Regression
from .replay.regress.history import History
from .replay.run.result import Repeats, RunResult
from .replay.transform.rewrite import Transformed
from .replay.verify import Verified
from .traces.errors import (
    AlignmentError,
    CaptureError,
    DxtReplayError,
    LogError,
    MissingDependencyError,
    ProfileError,
    RecordingError,
    ReplayError,
    TargetError,
    UsageError,
    WorkerError,
)
from .traces.samples import Sample, sample
from .traces.storage_limit import NoStorageLimitError, StorageLimit
from .traces.store.reader import Capture
from .traces.version import VERSION
from .traces.workers import Workers
from .workloads.source import ListedWorkload

__all__ = [
    "FIGURES",
    "FORMATS",
    "TABLES",
    "VERSION",
    "AlignmentError",
    "Anonymized",
    "Calibration",
    "Capacity",
    "Capture",
    "CaptureError",
    "Comparison",
    "Diagnosis",
    "DxtReplayError",
    "Exported",
    "Finding",
    "FittedWorkload",
    "GeneratedCapture",
    "History",
    "JobSummaries",
    "ListedWorkload",
    "LogError",
    "MergeResult",
    "MergedJobs",
    "MissingDependencyError",
    "NoStorageLimitError",
    "NoiseFloor",
    "ProfileError",
    "Recorded",
    "RecordingError",
    "Regression",
    "Repeats",
    "ReplayError",
    "Report",
    "RunChoices",
    "RunResult",
    "Sample",
    "Simulated",
    "Staged",
    "StorageLimit",
    "Summary",
    "TargetError",
    "Thresholds",
    "Timeline",
    "Transformed",
    "UsageError",
    "Verified",
    "Views",
    "WorkerError",
    "Workers",
    "anonymize",
    "calibrate",
    "capacity",
    "compare",
    "doctor",
    "export",
    "figure",
    "findings",
    "fit",
    "generate",
    "history",
    "keras_recording",
    "lightning_recording",
    "merge",
    "merge_each",
    "noise_floor",
    "open_capture",
    "part",
    "record",
    "recording",
    "regress",
    "report",
    "run",
    "run_repeatedly",
    "sample",
    "simulate",
    "stage",
    "storage_limit",
    "summarise_each",
    "summary",
    "table",
    "tables",
    "timeline",
    "transform",
    "unstage",
    "verify",
    "workloads",
]
