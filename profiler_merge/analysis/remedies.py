"""Remedies for findings, in the words of the framework that the program uses. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dxt_replay.profiler_merge.analysis.setting import Framework, Setting
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.traces.units import format_counted

_TENSORFLOW, _PYTORCH, _JAX, _UNKNOWN = (
    Framework.TENSORFLOW,
    Framework.PYTORCH,
    Framework.JAX,
    Framework.UNKNOWN,
)

_REMEDIES: Mapping[str, Mapping[Framework, str]] = {
    "read ahead": {
        _TENSORFLOW: "Prepare the next batches while the present one is computed: dataset.prefetch(tf.data.AUTOTUNE).",
        _PYTORCH: "Prepare the next batches while the present one is computed: DataLoader(..., num_workers=N, "
        "prefetch_factor=4), N up to the cores of each rank.",
        _JAX: "Prepare the next batches in the background, with tf.data's prefetch or a loader such as Grain.",
        _UNKNOWN: "Prepare the next batches in background threads or processes while the present one is computed.",
    },
    "read in parallel": {
        _TENSORFLOW: "Read several files at once: dataset.interleave(..., num_parallel_calls=tf.data.AUTOTUNE). The "
        "DLIO paper gained 1.2x with 8 read threads.",
        _PYTORCH: "Read with several processes: DataLoader(..., num_workers=N), N up to the cores of each rank, or "
        "more where they wait for storage. The DLIO paper gained 1.2x with 8 read threads.",
        _UNKNOWN: "Read several files at once, in threads or processes. The DLIO paper gained 1.2x with 8 read "
        "threads.",
    },
    "prepare faster": {
        _TENSORFLOW: "Decode in parallel, dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE), or once, ahead of "
        "the run. The DLIO paper gained up to 66 % with more preprocessing threads.",
        _PYTORCH: "Decode in more processes, DataLoader(..., num_workers=N), N up to the cores of each rank, or once, "
        "ahead of the run. The DLIO paper gained up to 66 % with more preprocessing threads.",
        _UNKNOWN: "Decode in more threads or processes, or once, ahead of the run. The DLIO paper gained up to 66 % "
        "with more preprocessing threads.",
    },
    "read more at once": {
        _TENSORFLOW: "Ask for more at once: TFRecordDataset(files, buffer_size=8 << 20), or larger records. Reads of "
        "1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
        _PYTORCH: "Ask for more at once: read shards of many samples (WebDataset, tar) with open(path, 'rb', "
        "buffering=8 << 20). Reads of 1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
        _UNKNOWN: "Ask for more at once: a larger buffer, or several samples a read. Reads of 1 MiB instead of 256 KiB "
        "were 1.25 to 1.32 times as fast in the DLIO paper.",
    },
    "read more of a shard at once": {
        _UNKNOWN: "Ask for more at once: read the shards through a larger buffer, such as open(path, 'rb', "
        "buffering=8 << 20). Reads of 1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
    },
    "open fewer files": {
        _UNKNOWN: "Put samples into fewer, larger files (shards, HDF5), and keep files open between epochs.",
    },
    "open shards less often": {
        _UNKNOWN: "Keep files open between epochs, and put more samples into each of them.",
    },
    "write more at once": {
        _UNKNOWN: "Collect the data in a buffer of some MiB before they are written; log less often.",
    },
    "keep what was read": {
        _TENSORFLOW: "Keep the samples in memory, dataset.cache(), or on a local disk, "
        "dataset.cache('/local/disk/file').",
        _PYTORCH: "Hold the samples in memory, or copy the data set to a local disk first.",
        _UNKNOWN: "Keep the data in memory, or copy the files to a local disk first.",
    },
    "save aside": {
        _TENSORFLOW: "Write checkpoints in the background, tf.train.CheckpointOptions(enable_async=True), from all "
        "ranks in parallel, or less often.",
        _PYTORCH: "Write checkpoints in the background, torch.distributed.checkpoint.async_save(...), from all ranks "
        "in parallel, or less often.",
        _JAX: "Write checkpoints in the background (orbax's AsyncCheckpointer), from all ranks in parallel, or less "
        "often.",
        _UNKNOWN: "Copy the state in memory and write it in the background, from all ranks in parallel, or less often.",
    },
}


_BY_WORKERS = ("read ahead", "read in parallel", "prepare faster")
"""Remedies that the worker processes of a DataLoader carry out."""


def input_remedy(name: str, setting: Setting, loop: SteadyLoop) -> str:
    """A remedy for the input of this program, with the recorded facts about its DataLoader's workers."""
    found, workers = remedy(name, setting.framework), setting.workers
    if name not in _BY_WORKERS or workers is None:
        return found
    said = [found, f"At most {format_counted(workers.at_once, 'worker')} of a rank read at the same time."]
    works_pct = 100 - loop.input_wait_pct
    if name == "prepare faster" and works_pct > 0:
        needed = math.ceil(100 * workers.at_once / works_pct)
        said.append(f"If each takes as long for a batch as now, {needed} would keep up, given a core each.")
    if workers.starts > 1:
        said.append(
            f"Workers started again {format_counted(workers.starts - 1, 'time')}: persistent_workers=True keeps them "
            "from one epoch to the next."
        )
    return " ".join(said)


def remedy(name: str, framework: Framework) -> str:
    """The remedy of this name for the framework, else the general one."""
    found = _REMEDIES[name]
    return found.get(framework, found[_UNKNOWN])
