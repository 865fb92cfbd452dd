"""The storage limit of a training: how much shorter it would be with infinitely fast storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dxt_replay.traces.doubt import BOUNDED, MODEL_ERROR_PCT, NO_DOUBT, UNKNOWN, Doubt
from dxt_replay.traces.errors import ReplayError


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPoint:
    """One point of a curve.

    quantity: the faster quantity: `speed` (all of storage), `bandwidth` or `latency`.
    multiple: multiple of the recorded speed; None for infinitely fast.
    elapsed_ns: duration of the training then.
    above_fastest_pct: excess of that duration over the one with infinitely fast storage.
    utilisation_pct: accelerator utilisation; None if the capture shows no compute.
    """

    quantity: str
    multiple: float | None
    elapsed_ns: int
    above_fastest_pct: float
    utilisation_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimit:
    """The cost of storage for a training, by its causal model. Times in ns, from the begin of the first step to the end
    of the last one. Time before and after the training loop is excluded, and so are waits that the recording caused.

    recorded_ns: of the capture. model_ns: by the model with the recorded durations. fastest_ns: with infinitely fast
    storage, by the model.
    utilisation_pct, fastest_utilisation_pct: accelerator utilisation, recorded and with infinitely fast storage; None
    if the capture shows no compute.
    doubt: how far this may be believed. prepared: whether recorded threads were on processors for most of the input
    wait that remains with such storage.
    points: the curves; empty unless asked for. enough: by quantity, the multiple of the recorded speed from which
    training takes at most 2 % longer than with infinitely fast storage; the smallest multiple of the curve if that is
    enough, None if the largest is not.
    """

    recorded_ns: int
    model_ns: int
    fastest_ns: int
    utilisation_pct: float | None
    fastest_utilisation_pct: float | None
    doubt: Doubt = NO_DOUBT
    prepared: bool = False
    points: tuple[LimitPoint, ...] = ()
    enough: Mapping[str, float | None]

    @property
    def saved_ns(self) -> int:
        """Time that infinitely fast storage would save, ns."""
        return max(self.model_ns - self.fastest_ns, 0)

    @property
    def saved_s(self) -> float:
        """`saved_ns` in seconds."""
        return self.saved_ns / 1e9

    @property
    def saved_between_ns(self) -> tuple[int, int]:
        """From the least to the most that such storage would save, ns: both `saved_ns` unless the doubt is BOUNDED."""
        if self.doubt.state != BOUNDED:
            return self.saved_ns, self.saved_ns
        wrong = self.doubt.error_pct if self.doubt.error_pct > MODEL_ERROR_PCT else 0.0
        least_ns = self.saved_ns - round(wrong / 100 * self.recorded_ns)
        return max(least_ns, 0), min(self.saved_ns + round(1e9 * self.doubt.unexplained_s), self.recorded_ns)

    @property
    def saved_between_s(self) -> tuple[float, float]:
        """`saved_between_ns` in seconds."""
        least_ns, most_ns = self.saved_between_ns
        return least_ns / 1e9, most_ns / 1e9

    @property
    def limit_pct(self) -> float:
        """`saved_ns` in per cent of the training."""
        return 100.0 * self.saved_ns / self.model_ns if self.model_ns else 0.0

    def as_json(self) -> dict[str, Any]:
        """The object `storage_limit` of `dxt-replay summary --json`."""
        return {
            "limit_pct": self.limit_pct,
            "elapsed_s": self.recorded_ns / 1e9,
            "fastest_s": (self.recorded_ns - self.saved_ns) / 1e9,
            "saved_s": self.saved_s,
            "saved_between_s": list(self.saved_between_s),
            "model_s": self.model_ns / 1e9,
            "utilisation_pct": self.utilisation_pct,
            "fastest_utilisation_pct": self.fastest_utilisation_pct,
            "enough": dict(self.enough),
            "reason": None,
            "doubt": asdict(self.doubt),
        }


class NoStorageLimitError(ReplayError):
    """The storage limit of a training is unknown. The message is the reason, a clause for use after a colon."""

    saved_between_s: None = None
    points: tuple[LimitPoint, ...] = ()

    @property
    def doubt(self) -> Doubt:
        """The reason as the doubt of all predictions."""
        return Doubt(state=UNKNOWN, reason=str(self))

    def as_json(self) -> dict[str, Any]:
        """`StorageLimit.as_json` with null for all values but the reason."""
        none = StorageLimit(
            recorded_ns=0, model_ns=0, fastest_ns=0, utilisation_pct=None, fastest_utilisation_pct=None, enough={}
        )
        return {**dict.fromkeys(none.as_json()), "enough": {}, "reason": str(self), "doubt": asdict(self.doubt)}


class TooLargeError(NoStorageLimitError):
    """The storage limit is not worked out for so large a capture; predictions are made all the same, unchecked."""

    @property
    def doubt(self) -> Doubt:
        """None: so large a capture is not checked."""
        return NO_DOUBT


Limit = StorageLimit | NoStorageLimitError
"""The storage limit, or the reason why it is unknown."""
