"""How two captures are related: recording and replay, the same recording twice, or two different runs."""

from __future__ import annotations

import hashlib
from enum import Enum

from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.records import is_replay
from dxt_replay.traces.schema import Source
from dxt_replay.traces.store.reader import Capture


class Relation(Enum):
    """How the second of two captures is related to the first; the values appear in JSON."""

    REPLAY = "replay"
    """The second replays the first."""
    REVERSED = "reversed"
    """The first replays the second: they were given in the wrong order."""
    BOTH_REPLAYS = "both replays"
    """Both replay the same recording."""
    SAME = "same"
    """The same capture twice, or one recording merged twice."""
    DIFFERENT = "different runs"
    """Neither names the other as its origin."""


def relation_of(first: Capture, second: Capture) -> Relation:
    """How `second` is related to `first`, by the checksums of the files that each was made from.

    A replay names its source and the source's logs, so it is recognised after these were moved or merged again. Raises:
    CaptureError when a capture.json cannot be read.
    """
    one, other = as_source(first).sha256, as_source(second).sha256
    origins, other_origins = ({source.sha256 for source in capture.info.sources} for capture in (first, second))
    if first.path.resolve() == second.path.resolve() or (one == other and origins):
        return Relation.SAME
    if origins.isdisjoint(other_origins | {other}) and one not in other_origins:
        return Relation.DIFFERENT
    return {
        (False, True): Relation.REPLAY,
        (True, False): Relation.REVERSED,
        (True, True): Relation.BOTH_REPLAYS,
        (False, False): Relation.SAME,
    }[is_replay(first.info), is_replay(second.info)]


def check_pair(source: Capture, replay: Capture, *, different_runs: bool = False) -> Relation:
    """How the two captures of a comparison are related.

    `different_runs`: allow two runs that do not replay each other.
    Raises: UsageError for two captures in the wrong order, and for two different runs that are not allowed;
    CaptureError when a capture.json cannot be read.
    """
    relation = relation_of(source, replay)
    if relation is Relation.REVERSED:
        raise UsageError(f"{source.named} is a replay of {replay.named}: give the recorded one first, then its replay")
    if relation is Relation.DIFFERENT and not different_runs:
        made = "replays another capture" if is_replay(replay.info) else "was recorded, not replayed"
        raise UsageError(
            f"{replay.named} is not a replay of {source.named}: it {made}. To compare them as two different runs, add "
            "--different-runs"
        )
    return relation


def as_source(capture: Capture) -> Source:
    """The entry of a capture in the sources of another one: its name and the SHA-256 of its capture.json.

    Raises: CaptureError when that file cannot be read.
    """
    document = capture.path / "capture.json"
    try:
        content = document.read_bytes()
    except OSError as error:
        raise CaptureError(f"cannot read {document}: {error.strerror}") from error
    return Source(name=capture.path.name, sha256=hashlib.sha256(content).hexdigest(), kind="capture")
