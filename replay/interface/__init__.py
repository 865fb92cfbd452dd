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
    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.named_tables import Views
    from dxt_replay.profiler_merge.analysis.summary import Summary
    from dxt_replay.profiler_merge.analysis.timeline import Timeline
    from dxt_replay.profiler_merge.anchor import anchor
    from dxt_replay.profiler_merge.export.exported import Exported
    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.profiler_merge.recording import keras_recording, lightning_recording, recording
    from dxt_replay.profiler_merge.workloads.listing import ListedWorkload
    from dxt_replay.replay.archive.catalogue import Catalogue
    from dxt_replay.replay.archive.merge_each import MergedArchive
    from dxt_replay.replay.calibration.calibration import Calibration
    from dxt_replay.replay.causal.storage_limit import NoStorageLimitError, StorageLimit
    from dxt_replay.replay.fidelity.compare import Comparison
    from dxt_replay.replay.fidelity.noise_floor import NoiseFloor
    from dxt_replay.replay.fidelity.workload_verdict import Thresholds
    from dxt_replay.replay.history.history import History
    from dxt_replay.replay.interface.analyses import TABLES, findings, storage_limit, summary, table, tables, timeline
    from dxt_replay.replay.interface.anonymizing import anonymize
    from dxt_replay.replay.interface.archives import catalogue, merge_each
    from dxt_replay.replay.interface.calibrations import calibrate
    from dxt_replay.replay.interface.captures import open_capture, part
    from dxt_replay.replay.interface.charts import FIGURES, figure
    from dxt_replay.replay.interface.comparisons import compare, noise_floor, regress
    from dxt_replay.replay.interface.descriptions import FittedWorkload, fit
    from dxt_replay.replay.interface.exports import FORMATS, Report, export, report
    from dxt_replay.replay.interface.generating import (
        CheckedWorkload,
        GeneratedCapture,
        check_workload,
        generate,
        workloads,
    )
    from dxt_replay.replay.interface.histories import history
    from dxt_replay.replay.interface.merging import merge
    from dxt_replay.replay.interface.recordings import Recorded, record
    from dxt_replay.replay.interface.replays import RunChoices, Staged, explain, run, run_repeatedly, stage, unstage
    from dxt_replay.replay.interface.simulations import Simulated, simulate
    from dxt_replay.replay.interface.transforming import transform
    from dxt_replay.replay.interface.verifying import verify
    from dxt_replay.replay.interface.witnessing import compare_log, is_replay_log
    from dxt_replay.replay.regression.comparison import Regression
    from dxt_replay.replay.run.repeat import Repeats
    from dxt_replay.replay.run.result import RunResult
    from dxt_replay.replay.sharing.anonymous_capture import Anonymized
    from dxt_replay.replay.transform.rewrite import Transformed
    from dxt_replay.replay.verifying.checked import Verified
    from dxt_replay.replay.witness.counted_comparison import CountedComparison
    from dxt_replay.traces.errors import (
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
    from dxt_replay.traces.samples import Sample, sample
    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.traces.version import VERSION
    from dxt_replay.traces.workers.workers import Workers

_HOMES = {
    "dxt_replay.profiler_merge.analysis.finding": ("Finding",),
    "dxt_replay.profiler_merge.analysis.named_tables": ("Views",),
    "dxt_replay.profiler_merge.analysis.summary": ("Summary",),
    "dxt_replay.profiler_merge.analysis.timeline": ("Timeline",),
    "dxt_replay.profiler_merge.anchor": ("anchor",),
    "dxt_replay.profiler_merge.export.exported": ("Exported",),
    "dxt_replay.profiler_merge.merge": ("MergeResult",),
    "dxt_replay.profiler_merge.workloads.listing": ("ListedWorkload",),
    "dxt_replay.profiler_merge.recording": ("keras_recording", "lightning_recording", "recording"),
    "dxt_replay.replay.archive.catalogue": ("Catalogue",),
    "dxt_replay.replay.archive.merge_each": ("MergedArchive",),
    "dxt_replay.replay.calibration.calibration": ("Calibration",),
    "dxt_replay.replay.fidelity.compare": ("Comparison",),
    "dxt_replay.replay.fidelity.noise_floor": ("NoiseFloor",),
    "dxt_replay.replay.fidelity.workload_verdict": ("Thresholds",),
    "dxt_replay.replay.interface.analyses": (
        "TABLES",
        "findings",
        "storage_limit",
        "summary",
        "table",
        "tables",
        "timeline",
    ),
    "dxt_replay.replay.interface.anonymizing": ("anonymize",),
    "dxt_replay.replay.interface.archives": ("catalogue", "merge_each"),
    "dxt_replay.replay.interface.calibrations": ("calibrate",),
    "dxt_replay.replay.causal.storage_limit": ("NoStorageLimitError", "StorageLimit"),
    "dxt_replay.replay.interface.captures": ("open_capture", "part"),
    "dxt_replay.replay.interface.comparisons": ("compare", "noise_floor", "regress"),
    "dxt_replay.replay.interface.descriptions": ("FittedWorkload", "fit"),
    "dxt_replay.replay.interface.exports": ("FORMATS", "Report", "export", "report"),
    "dxt_replay.replay.interface.charts": ("FIGURES", "figure"),
    "dxt_replay.replay.interface.generating": (
        "CheckedWorkload",
        "GeneratedCapture",
        "check_workload",
        "generate",
        "workloads",
    ),
    "dxt_replay.replay.history.history": ("History",),
    "dxt_replay.replay.interface.histories": ("history",),
    "dxt_replay.replay.interface.merging": ("merge",),
    "dxt_replay.replay.interface.recordings": ("Recorded", "record"),
    "dxt_replay.replay.interface.replays": (
        "RunChoices",
        "Staged",
        "explain",
        "run",
        "run_repeatedly",
        "stage",
        "unstage",
    ),
    "dxt_replay.replay.interface.simulations": ("Simulated", "simulate"),
    "dxt_replay.replay.interface.transforming": ("transform",),
    "dxt_replay.replay.interface.verifying": ("verify",),
    "dxt_replay.replay.interface.witnessing": ("compare_log", "is_replay_log"),
    "dxt_replay.replay.regression.comparison": ("Regression",),
    "dxt_replay.replay.run.repeat": ("Repeats",),
    "dxt_replay.replay.run.result": ("RunResult",),
    "dxt_replay.replay.sharing.anonymous_capture": ("Anonymized",),
    "dxt_replay.replay.transform.rewrite": ("Transformed",),
    "dxt_replay.replay.verifying.checked": ("Verified",),
    "dxt_replay.replay.witness.counted_comparison": ("CountedComparison",),
    "dxt_replay.traces.errors": (
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
    "dxt_replay.traces.samples": ("Sample", "sample"),
    "dxt_replay.traces.store.reader": ("Capture",),
    "dxt_replay.traces.version": ("VERSION",),
    "dxt_replay.traces.workers.workers": ("Workers",),
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
    "CheckedWorkload",
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
    "check_workload",
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
