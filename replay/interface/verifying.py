"""Verifies that captures and staged twins are intact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.looking import VerifyChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.verify import Verified


@takes(VerifyChoices)
def verify(*paths: PathLike, **choices: Unpack[VerifyChoices]) -> Verified:
    """Check captures against their digests, counts and sources, and staged twins against their manifests. Reads only.

    HDF5 twins need their capture among `paths`.

        assert dxt_replay.verify("run.capture", "/scratch/twin").passed

    Raises: UsageError for a path that is neither a capture nor a staged target.
    """
    from dxt_replay.replay.target.targets import target_named
    from dxt_replay.replay.verify import verify_places

    if not paths:
        raise UsageError("nothing to verify: give a capture, or a directory that `dxt-replay stage` filled")
    chosen = filled(VerifyChoices, choices)
    sources = [Path(source) for source in chosen["sources"]]
    return verify_places([target_named(path) for path in paths], sources=sources, sizes_only=chosen["sizes_only"])
