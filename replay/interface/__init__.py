"""The public Python interface of dxt-replay: `import dxt_replay`. Everything else is private.

    import dxt_replay

    capture = dxt_replay.open_capture("run.capture")
    dxt_replay.table(capture, "steps")

Re-exports only, each imported when it is first used: nothing is defined twice when this folder is imported under its
two names, `dxt_replay` and `replay.interface`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .packages import ForeignPackageError, check_packages  # relative: `replay` may be another project's

if TYPE_CHECKING:
    from profiler_merge.analysis.finding import Finding
    from profiler_merge.analysis.named_tables import Views
    from profiler_merge.analysis.summary import Summary
    from profiler_merge.analysis.timeline import Timeline
    from profiler_merge.anchor import anchor
    from profiler_merge.export.exported import Exported
    from profiler_merge.merge import MergeResult
    from profiler_merge.recording import keras_recording, lightning_recording, recording
    from profiler_merge.workloads.listing import ListedWorkload
    from replay.archive.catalogue import Catalogue
    from replay.archive.merge_each import MergedArchive
    from replay.calibration.calibration import Calibration
    from replay.causal.storage_limit import NoStorageLimitError, StorageLimit
    from replay.fidelity.compare import Comparison
    from replay.fidelity.noise_floor import NoiseFloor
    from replay.fidelity.workload_verdict import Thresholds
    from replay.history.history import History
    from replay.interface.analyses import TABLES, findings, storage_limit, summary, table, tables, timeline
    from replay.interface.anonymizing import anonymize
    from replay.interface.archives import catalogue, merge_each
    from replay.interface.calibrations import calibrate
    from replay.interface.captures import open_capture, part
    from replay.interface.charts import FIGURES, figure
    from replay.interface.comparisons import compare, noise_floor, regress
    from replay.interface.descriptions import FittedWorkload, fit
    from replay.interface.exports import FORMATS, Report, export, report
    from replay.interface.generating import GeneratedCapture, generate, workloads
    from replay.interface.histories import history
    from replay.interface.merging import merge
    from replay.interface.recordings import Recorded, record
    from replay.interface.replays import RunChoices, Staged, explain, run, run_repeatedly, stage, unstage
    from replay.interface.simulations import Simulated, simulate
    from replay.interface.transforming import transform
    from replay.interface.verifying import verify
    from replay.interface.witnessing import compare_log, is_replay_log
    from replay.regression.comparison import Regression
    from replay.run.repeat import Repeats
    from replay.run.result import RunResult
    from replay.sharing.anonymous_capture import Anonymized
    from replay.transform.rewrite import Transformed
    from replay.verifying.checked import Verified
    from replay.witness.counted_comparison import CountedComparison
    from traces.errors import (
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
    from traces.samples import Sample, sample
    from traces.store.reader import Capture
    from traces.version import VERSION
    from traces.workers.workers import Workers

_HOMES = {
    "profiler_merge.analysis.finding": ("Finding",),
    "profiler_merge.analysis.named_tables": ("Views",),
    "profiler_merge.analysis.summary": ("Summary",),
    "profiler_merge.analysis.timeline": ("Timeline",),
    "profiler_merge.anchor": ("anchor",),
    "profiler_merge.export.exported": ("Exported",),
    "profiler_merge.merge": ("MergeResult",),
    "profiler_merge.workloads.listing": ("ListedWorkload",),
    "profiler_merge.recording": ("keras_recording", "lightning_recording", "recording"),
    "replay.archive.catalogue": ("Catalogue",),
    "replay.archive.merge_each": ("MergedArchive",),
    "replay.calibration.calibration": ("Calibration",),
    "replay.fidelity.compare": ("Comparison",),
    "replay.fidelity.noise_floor": ("NoiseFloor",),
    "replay.fidelity.workload_verdict": ("Thresholds",),
    "replay.interface.analyses": ("TABLES", "findings", "storage_limit", "summary", "table", "tables", "timeline"),
    "replay.interface.anonymizing": ("anonymize",),
    "replay.interface.archives": ("catalogue", "merge_each"),
    "replay.interface.calibrations": ("calibrate",),
    "replay.causal.storage_limit": ("NoStorageLimitError", "StorageLimit"),
    "replay.interface.captures": ("open_capture", "part"),
    "replay.interface.comparisons": ("compare", "noise_floor", "regress"),
    "replay.interface.descriptions": ("FittedWorkload", "fit"),
    "replay.interface.exports": ("FORMATS", "Report", "export", "report"),
    "replay.interface.charts": ("FIGURES", "figure"),
    "replay.interface.generating": ("GeneratedCapture", "generate", "workloads"),
    "replay.history.history": ("History",),
    "replay.interface.histories": ("history",),
    "replay.interface.merging": ("merge",),
    "replay.interface.recordings": ("Recorded", "record"),
    "replay.interface.replays": ("RunChoices", "Staged", "explain", "run", "run_repeatedly", "stage", "unstage"),
    "replay.interface.simulations": ("Simulated", "simulate"),
    "replay.interface.transforming": ("transform",),
    "replay.interface.verifying": ("verify",),
    "replay.interface.witnessing": ("compare_log", "is_replay_log"),
    "replay.regression.comparison": ("Regression",),
    "replay.run.repeat": ("Repeats",),
    "replay.run.result": ("RunResult",),
    "replay.sharing.anonymous_capture": ("Anonymized",),
    "replay.transform.rewrite": ("Transformed",),
    "replay.verifying.checked": ("Verified",),
    "replay.witness.counted_comparison": ("CountedComparison",),
    "traces.errors": (
        "AlignmentError",
        "CaptureError",
        "DxtReplayError",
        "LogError",
        "MissingDependencyError",
        "ProfileError",
        "RecordingError",
        "ReplayError",
        "TargetError",
        "UsageError",
        "WorkerError",
    ),
    "traces.samples": ("Sample", "sample"),
    "traces.store.reader": ("Capture",),
    "traces.version": ("VERSION",),
    "traces.workers.workers": ("Workers",),
}
"""Module -> public names that it defines."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "FIGURES",
    "FORMATS",
    "TABLES",
    "VERSION",
    "AlignmentError",
    "Anonymized",
    "Calibration",
    "Capture",
    "CaptureError",
    "Catalogue",
    "Comparison",
    "CountedComparison",
    "DxtReplayError",
    "Exported",
    "Finding",
    "FittedWorkload",
    "ForeignPackageError",
    "GeneratedCapture",
    "History",
    "ListedWorkload",
    "LogError",
    "MergeResult",
    "MergedArchive",
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
    "anchor",
    "anonymize",
    "calibrate",
    "catalogue",
    "compare",
    "compare_log",
    "explain",
    "export",
    "figure",
    "findings",
    "fit",
    "generate",
    "history",
    "is_replay_log",
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
    "summary",
    "table",
    "tables",
    "timeline",
    "transform",
    "unstage",
    "verify",
    "workloads",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_packages()  # not above: the start of the program, beside this file, reports in its own way
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
