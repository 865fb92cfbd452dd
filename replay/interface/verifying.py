"""Verifies that captures and staged twins are intact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.choices import PathLike
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.verifying.checked import Verified


def verify(*paths: PathLike, sources: Sequence[PathLike] = (), sizes_only: bool = False) -> Verified:
    """Check captures against their digests, counts and sources, and staged twins against their manifests. Reads only.

    `sources`: files that a capture was made from; those beside the capture are found without it. `sizes_only`: check
    the kinds and sizes of a twin's files, not their bytes. HDF5 twins need their capture among `paths`.

        assert dxt_replay.verify("run.capture", "/scratch/twin").passed

    Raises: UsageError for a path that is neither a capture nor a staged target.
    """
    from dxt_replay.replay.verifying.places import verify_places

    if not paths:
        raise UsageError("nothing to verify: give a capture, or a directory that `dxt-replay stage` filled")
    return verify_places([Path(path) for path in paths], sources=[Path(s) for s in sources], sizes_only=sizes_only)
