"""Sharing: a capture without the names of files, hosts and people."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.captures import CaptureOrPath, opened
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.anonymize import Anonymized

_KEY_BYTES = 32


def anonymize(
    capture: CaptureOrPath, output: PathLike, *, key: str | bytes | None = None, force: bool = False
) -> Anonymized:
    """Write a capture that can be shared: keyed hashes replace all names, and the operations stay the same.

    `key`: captures anonymized under the same key get the same names, so `compare` still knows a replay as the replay
    of its recording. A person who has the key can test guesses of names. None: a random key, which is not kept.
    `force` replaces an earlier capture.

        dxt_replay.anonymize("run.capture", "shared.capture")

    Raises: UsageError for an empty key; TargetError for `output`.
    """
    from dxt_replay.replay.anonymize import anonymize_capture

    secret = secrets.token_bytes(_KEY_BYTES) if key is None else key.encode() if isinstance(key, str) else key
    if not secret:
        raise UsageError("the key is empty: give a long random one, or none for a key that is made and not kept")
    with opened(capture) as source:
        return anonymize_capture(source, Path(output), secret, random_key=key is None, force=force)
