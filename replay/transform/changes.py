"""The changes that a user asks for, checked as far as possible without a capture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dxt_replay.replay.plan.pacing import FASTEST, SLOWEST
from dxt_replay.traces.errors import UsageError

MOST_READERS, MOST_RANKS = 4096, 1 << 20  # Largest numbers of readers of a rank, and of ranks

DECODERS = {"gzip": 300e6, "lzf": 800e6, "lz4": 2_000e6, "zstd": 1_000e6}
"""Decoder -> bytes per second that come out of it on one core: what such decoders reach on numeric data, in round
numbers; a third part of the option overrides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A compression of data: name of the decoder, stored bytes / bytes, and output rate of the decoder."""

    name: str
    ratio: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes to a capture, applied in the order of the fields; None and 1.0 change nothing.

    chunk_bytes: of the HDF5 data. compression: of the data that are read. transfer_bytes: of one request for a stream.
    readers, prefetch: lanes that read for the loop of a rank, 0 for the training thread; batches read ahead.
    compute_speed: multiple of the recorded speed.
    ranks, weak: number of ranks; with `weak` each does as much work as before, else they share the recorded work.
    Raises: UsageError for impossible values, for changes that exclude each other, and for no change."""

    chunk_bytes: int | None = None
    compression: Compression | None = None
    transfer_bytes: int | None = None
    readers: int | None = None
    prefetch: int | None = None
    compute_speed: float = 1.0
    ranks: int | None = None
    weak: bool = False

    def __post_init__(self) -> None:
        if not SLOWEST <= self.compute_speed <= FASTEST:
            raise UsageError(
                f"--compute-speed {self.compute_speed} is not a number between {SLOWEST:g} and {FASTEST:g}"
            )
        for name, count, least, most in (
            ("--readers", self.readers, 0, MOST_READERS),
            ("--prefetch", self.prefetch, 1, MOST_READERS),
            ("--ranks", self.ranks, 1, MOST_RANKS),
        ):
            if count is not None and not least <= count <= most:
                raise UsageError(f"{name} {count} is not a number from {least} to {most}")
        if self.readers == 0 and self.prefetch is not None:
            raise UsageError(
                "--prefetch needs readers that run ahead of the training loop, and with --readers 0 the training "
                "thread itself reads: leave one of them out"
            )
        if self.weak and self.ranks is None:
            raise UsageError("--weak says how --ranks changes the work: give --ranks, too")
        if not self.as_json():
            raise UsageError(
                "nothing to change: give at least one of --chunk, --compression, --transfer-size, --readers, "
                "--prefetch, --compute-speed and --ranks"
            )

    @property
    def requests_change(self) -> bool:
        """Whether the requests change."""
        return (self.chunk_bytes, self.compression, self.transfer_bytes) != (None, None, None)

    @property
    def pipeline_changes(self) -> bool:
        """Whether the work of the readers changes."""
        return (self.readers, self.prefetch) != (None, None)

    def as_json(self) -> dict[str, Any]:
        """The changes by option, in the order in which they are applied; as capture.json has them."""
        nothing = {"compute_speed": 1.0, "weak": False}
        return {name: value for name, value in asdict(self).items() if value != nothing.get(name)}


def parse_compression(text: str) -> Compression:
    """`gzip:0.6` or, with the speed of the decoder, `gzip:0.6:250MB/s`. Raises: UsageError for anything else."""
    name, _, rest = text.partition(":")
    ratio_text, _, speed = rest.partition(":")
    try:
        ratio = float(ratio_text)
        per_s = float(speed.removesuffix("MB/s")) * 1e6 if speed else DECODERS[name]
    except (ValueError, KeyError):
        ratio = per_s = 0.0
    if name not in DECODERS or not 0 < ratio <= 1 or not 0 < per_s < float("inf"):
        raise UsageError(
            f"--compression {text!r}: write NAME:RATIO or NAME:RATIO:SPEED, such as gzip:0.6 or gzip:0.6:250MB/s; NAME "
            f"is one of {', '.join(DECODERS)}, RATIO is stored / original bytes, above 0 and at most 1"
        )
    return Compression(name=name, ratio=ratio, bytes_per_s=per_s)
