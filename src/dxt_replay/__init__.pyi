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
from .replay.commands.capacities import capacity
from .replay.commands.captures import open_capture, part
from .replay.commands.judging import compare, history, noise_floor, regress, verify
from .replay.commands.looking import (
    TABLES,
    Report,
    figure,
    findings,
    report,
    storage_limit,
    summary,
    table,
    tables,
    timeline,
)
from .replay.commands.making import GeneratedCapture, Recorded, generate, merge, record, workloads
from .replay.commands.predicting import Simulated, calibrate, simulate, transform
from .replay.commands.replaying import Staged, doctor, run, run_repeatedly, stage, unstage
from .replay.commands.sharing import FORMATS, FittedWorkload, anonymize, export, fit
from .replay.compare.comparison import Comparison
from .replay.compare.noise import NoiseFloor
from .replay.compare.verdict import Thresholds
from .replay.doctor import Diagnosis
from .replay.jobs import JobSummaries, MergedJobs, merge_each, summarise_each
from .replay.regress.comparison import Regression
from .replay.regress.history import History
from .replay.run.result import Repeats, RunResult
from .replay.show.page.chart_data import FIGURES
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
