"""How right predictions are, and the table of them. Pure.

A cell is one line of the results: `job`, `what` (truth, recording or prediction), `on` (fast or slow), the number of a
truth's `run`, and what was measured or why it `failed`. The last cell of its kind counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

PLACES = ("fast", "slow")
CLOSE_PCT, FAR_PCT = 10.0, 20.0
"""Errors of the added seconds up to which a prediction is right, and beyond which it should have been doubted."""

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A job's seconds on one storage, predicted from its recording on the other.

    truths, others: true seconds there, and where it was recorded. interval_s: as the prediction states it, or None.
    """

    truths: Sequence[float]
    others: Sequence[float]
    predicted_s: float
    doubt: str
    interval_s: Sequence[float] | None

    @property
    def ratio(self) -> float:
        """Predicted to true seconds."""
        return self.predicted_s / median(self.truths)

    @property
    def error_pct(self) -> float:
        """Error as a share of the seconds that the slow storage really adds."""
        added = abs(median(self.truths) - median(self.others))
        return 100.0 * (self.predicted_s - median(self.truths)) / max(added, 1e-9)

    @property
    def right(self) -> bool:
        """Whether the error is small, or the prediction lies among the true runs."""
        among = min(self.truths) <= self.predicted_s <= max(self.truths)
        return among or abs(self.error_pct) <= CLOSE_PCT

    @property
    def wrong(self) -> bool:
        """Whether the error is so large that a doubt is due."""
        return not self.right and abs(self.error_pct) > FAR_PCT

    @property
    def held(self) -> bool | None:
        """Whether the interval holds the median truth; None without one."""
        if self.interval_s is None:
            return None
        return self.interval_s[0] <= median(self.truths) <= self.interval_s[1]


def key(cell: Cell) -> tuple[Any, ...]:
    """What makes two cells the same one."""
    return cell["job"], cell["what"], cell["on"], cell.get("run")


def latest(cells: Iterable[Cell]) -> dict[tuple[Any, ...], Cell]:
    """The last cell of each key."""
    return {key(cell): cell for cell in cells}


def predictions(cells: Iterable[Cell]) -> dict[tuple[str, str], Prediction]:
    """By job and the storage that is predicted, where truths of both storages and the prediction exist."""
    found, truths = latest(cells), dict[tuple[str, str], list[float]]()
    for cell in found.values():
        if cell["what"] == "truth" and "loop_s" in cell:
            truths.setdefault((cell["job"], cell["on"]), []).append(cell["loop_s"])
    made = {}
    for cell in found.values():
        job, on = cell["job"], cell["on"]
        here, there = truths.get((job, on)), truths.get((job, PLACES[on == "fast"]))
        if cell["what"] == "prediction" and "training_s" in cell and here and there:
            made[job, on] = Prediction(
                truths=here,
                others=there,
                predicted_s=cell["training_s"],
                doubt=cell.get("doubt") or next((each for each in cell["warnings"] if "is not known" in each), ""),
                interval_s=cell.get("interval_s"),
            )
    return made


HEAD = (
    "| job | slow storage | predicted | truth there | recorded (without recorder) | prediction | ratio "
    "| error of the added seconds | right | doubted | interval | storage limit, true share |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def table(cells: Iterable[Cell], storages: Mapping[str, str]) -> str:
    """Markdown. `storages`: the slow storage of each job."""
    cells = list(cells)
    found, made = latest(cells), predictions(cells)
    lines = list(HEAD)
    for job, on in ((job, on) for job in dict.fromkeys(cell["job"] for cell in cells) for on in reversed(PLACES)):
        lines.append(f"| {job} | {storages.get(job, '')} | {on} from {PLACES[on == 'fast']} | ")
        if (job, on) in made:
            lines[-1] += _row(made[job, on], found.get((job, "recording", PLACES[on == "fast"], None), {}), on)
        else:
            here = [cell for cell in found.values() if cell["job"] == job and "failed" in cell]
            here.sort(key=lambda cell: (cell["what"], cell["on"]) != ("prediction", on))
            why = f"{here[0]['what']} on {here[0]['on']}: {here[0]['failed']}" if here else "not measured yet"
            lines[-1] += f"{why} | | | | | | | | |"
    failed = sum(cell["what"] == "prediction" and "failed" in cell for cell in found.values())
    return "\n".join([*lines, "", *conclusions(list(made.values()), failed)])


def _row(each: Prediction, recording: Cell, on: str) -> str:
    fast, slow = (each.others, each.truths) if on == "slow" else (each.truths, each.others)
    limit = "not known" if recording.get("limit_pct") is None else f"{recording['limit_pct']:.0f} %"
    share = f", {100 * (1 - median(fast) / median(slow)):.0f} %" if on == "fast" else ""
    recorded = f"{recording['loop_s']:.2f} ({median(each.others):.2f})" if "loop_s" in recording else ""
    columns = [
        ", ".join(f"{truth:.2f}" for truth in each.truths),
        recorded,
        f"{each.predicted_s:.2f}",
        f"{each.ratio:.2f}",
        f"{each.error_pct:+.0f} %",
        "yes" if each.right else "**no**" if each.wrong else "no",
        "yes" if each.doubt else "no",
        "-" if each.held is None else "holds" if each.held else "**misses**",
        limit + share,
    ]
    return " | ".join(columns) + " |"


def conclusions(made: Sequence[Prediction], failed: int) -> list[str]:
    """The counts below the table. failed: predictions that were refused."""
    doubted, stated = [each for each in made if each.doubt], [each for each in made if each.held is not None]
    right, missed = sum(each.right for each in made), sum(each.wrong and not each.doubt for each in made)
    return [
        f"- {right} of {len(made)} are right: within {CLOSE_PCT:g} % of the added seconds, or among the true runs.",
        f"- {failed} more were refused or failed.",
        f"- {len(doubted)} are doubted, {sum(each.right for each in doubted)} of them right.",
        f"- {missed} are off by more than {FAR_PCT:g} % of the added seconds and not doubted.",
        f"- {sum(bool(each.held) for each in stated)} of {len(stated)} stated intervals hold the truth.",
    ]
