"""How much shorter a training would be with infinitely fast storage (its storage limit), and what is known of how long
it takes on other storage: the one object with which commands begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.plain import Result
from dxt_replay.traces.units import format_duration

KNOWN, BOUNDED, UNKNOWN = "known", "bounded", "not known"

MODEL_ERROR_PCT = 10.0
"""By how much a recorded job is taken to differ from its causal model. It is a goal, not a bound: on a busy machine of
two processors half of the jobs of a benchmark differed by more."""

FASTER_ERROR = 0.5
"""Error of a prediction as a share of the time that faster storage saves: gaps between operations shrink with it. Of
five jobs with known batches, four were predicted onto fast storage within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """How far a prediction of a training may be believed.

    state: KNOWN, BOUNDED or UNKNOWN. reason: a clause for use after a colon; empty for KNOWN.
    error_pct: by how much of itself a predicted time may be off. unexplained_s: waits for input that the model does not
    explain and that may be waits for storage.
    """

    state: str = KNOWN
    reason: str = ""
    error_pct: float = MODEL_ERROR_PCT
    unexplained_s: float = 0.0

    @property
    def sentences(self) -> list[str]:
        """What every command says first: a sentence, or none where the training is known."""
        if self.state == KNOWN:
            return []
        if self.state == UNKNOWN:
            return [f"How long this training takes on other storage is not known: {self.reason}."]
        return [f"How long this training takes on other storage is known within bounds only: {self.reason}."]

    def doubted_for(self, reason: str) -> Doubt:
        """This doubt; for a reason that is not empty, that the training is UNKNOWN."""
        return Doubt(state=UNKNOWN, reason=reason) if reason else self

    def between(self, low_ns: float, high_ns: float, recorded_ns: float) -> tuple[int, int]:
        """The interval of predicted times from `low_ns` to `high_ns`, widened by the error.

        recorded_ns: without what the recording cost.
        """
        if not self.error_pct:
            return round(low_ns), round(high_ns)
        saved = max(1.0 - low_ns / recorded_ns, 0.0) if recorded_ns else 0.0
        error = max(self.error_pct / 100, FASTER_ERROR * saved)
        unexplained_ns = 1e9 * self.unexplained_s
        return round(max(low_ns * (1.0 - error) - unexplained_ns, 0.0)), round(high_ns * (1.0 + error) + unexplained_ns)


NO_DOUBT = Doubt()
"""Of a training whose predictions are as good as usual."""


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
class StorageLimit(Result):
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


class HiddenWaitError(NoStorageLimitError):
    """The loop waited where no record shows for what; the message ends with `most_by_processors`."""


def most_by_processors(marks: Sequence[Mapping[str, int]]) -> str:
    """The most that storage can have cost ranks whose loops' threads took this processor time, a sentence without its
    full stop. marks: those of `made_by` in capture.json, one or more."""
    most = max(marks, key=lambda each: each["loop_ns"] - each["cpu_ns"])
    rest, loop = max(most["loop_ns"] - most["cpu_ns"], 0), max(most["loop_ns"], 1)
    return (
        f"Storage cost at most {format_duration(rest)}, {100 * rest / loop:.1f} % of the loop's "
        f"{format_duration(loop)}: for the rest the loop's thread was on a processor"
    )


class TooLargeError(NoStorageLimitError):
    """The storage limit is not worked out for so large a capture; predictions are made all the same, unchecked."""

    @property
    def doubt(self) -> Doubt:
        """None: so large a capture is not checked."""
        return NO_DOUBT


Limit = StorageLimit | NoStorageLimitError
"""The storage limit, or the reason why it is unknown."""
