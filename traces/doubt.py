"""What is known of how long a training takes on other storage: the one object with which commands begin."""

from __future__ import annotations

from dataclasses import dataclass

KNOWN, BOUNDED, UNKNOWN = "known", "bounded", "not known"

MODEL_ERROR_PCT = 10.0
"""By how much a recorded job is taken to differ from its causal model. It is a goal, not a bound: on a busy machine of
two processors half of the jobs of `benchmarks.pipelines` differed by more."""

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
