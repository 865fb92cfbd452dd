"""What-if: a capture to a changed capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.interface.merging import PathLike

if TYPE_CHECKING:
    from dxt_replay.replay.transform.rewrite import Transformed


def transform(
    capture: CaptureOrPath,
    output: PathLike,
    *,
    chunk: int | str | None = None,
    compression: str | None = None,
    transfer_size: int | str | None = None,
    batch: int | None = None,
    readers: int | None = None,
    prefetch: int | None = None,
    preprocess_speed: float = 1.0,
    compute_speed: float = 1.0,
    ranks: int | None = None,
    weak: bool = False,
    force: bool = False,
) -> Transformed:
    """Write a capture as it would be with other requests, another input pipeline, other compute or other ranks.

    `chunk`, `transfer_size`: bytes, or text such as "1MiB". `compression`: "gzip:0.6", stored / original bytes, or with
    the decoder's speed "gzip:0.6:250MB/s". `batch`: how many batches become one.
    `readers`: lanes that read for each rank, 0 for its training thread;
    `prefetch`: batches read ahead. `ranks` with `weak`: each rank has as much to do as before.
    Several changes are applied in the order of the parameters. What they assume is in the result, and in capture.json.
    `force` replaces an earlier capture.

        dxt_replay.transform("run.capture", "what-if.capture", transfer_size="1MiB", readers=8).assumptions

    Raises: UsageError for a change that has no meaning for the capture; TargetError for `output`.
    """
    from dxt_replay.replay.transform.changes import Changes
    from dxt_replay.replay.transform.compression import parse_compression
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.units import parse_bytes

    changes = Changes(
        chunk_bytes=None if chunk is None else parse_bytes(str(chunk), "--chunk"),
        compression=None if compression is None else parse_compression(compression),
        transfer_bytes=None if transfer_size is None else parse_bytes(str(transfer_size), "--transfer-size"),
        batch_times=batch,
        readers=readers,
        prefetch=prefetch,
        preprocess_speed=preprocess_speed,
        compute_speed=compute_speed,
        ranks=ranks,
        weak=weak,
    )
    with opened(capture) as source:
        return transform_capture(source, changes, Path(output), force=force)
