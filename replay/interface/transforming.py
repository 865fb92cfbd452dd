"""Predicts a capture under other conditions (what-if)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import TransformChoices
from dxt_replay.replay.options.option import filled, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.transform.rewrite import Transformed


@takes(TransformChoices)
def transform(
    capture: CaptureOrPath, output: PathLike, *, force: bool = False, **choices: Unpack[TransformChoices]
) -> Transformed:
    """Predict a capture with other requests, another input pipeline, other compute or other ranks.

    Sizes are bytes, or text such as "1MiB". Several changes are applied in the order of the keywords. The result and
    capture.json list their assumptions. `force` replaces an earlier capture.

        dxt_replay.transform("run.capture", "what-if.capture", transfer_size="1MiB", readers=8).assumptions

    Raises: UsageError for a change that has no meaning for the capture; TargetError for `output`.
    """
    from dxt_replay.replay.transform.changes import Changes, parse_compression
    from dxt_replay.replay.transform.rewrite import transform_capture
    from dxt_replay.traces.units import parse_bytes

    chosen = filled(TransformChoices, choices)
    chunk, transfer, compression = chosen.pop("chunk"), chosen.pop("transfer_size"), chosen.pop("compression")
    changes = Changes(
        chunk_bytes=None if chunk is None else parse_bytes(str(chunk), "--chunk"),
        compression=None if compression is None else parse_compression(compression),
        transfer_bytes=None if transfer is None else parse_bytes(str(transfer), "--transfer-size"),
        **chosen,
    )
    with opened(capture) as source:
        return transform_capture(source, changes, Path(output), force=force)
