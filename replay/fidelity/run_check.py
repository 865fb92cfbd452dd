"""Compares a generated capture with a recording of the same workload, file by file, regardless of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dxt_replay.replay.fidelity.file_visits import (
    COUNTS,
    FileVisits,
    Request,
    file_visits,
    traces_opens,
    visits_of_file,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count, format_counted

TRAIN, EVALUATION, CHECKPOINT = "train", "evaluation", "checkpoint"
MOST_REQUESTS = 6
"""Requests of a visit that a difference shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the comparison.

    generated, run: totals of both sides; of `sizes` how many there are; of `requests` and `order` the files of the
    generated capture, and those of them that the run treats alike. equal: whether all is equal, file by file; None
    where that is not known. not_known: of `requests` and `order`, files of which the run's trace does not say it.
    """

    generated: int
    run: int
    equal: bool | None
    not_known: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """The comparison. kinds: kind of file -> measure -> values. ranks: those of both sides, and with equal work.

    differences: the first of each kind, as sentences. notes: what bounds the comparison.
    """

    kinds: Mapping[str, Mapping[str, Measure]]
    ranks: Measure
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs of what is known."""
        found = [self.ranks, *(measure for kind in self.kinds.values() for measure in kind.values())]
        return all(measure.equal is not False for measure in found)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"equal": self.equal, **asdict(self)}


def check_run(generated: Capture, run: Capture, places: Mapping[str, str]) -> RunCheck:
    """Compare a generated capture with a recorded run of the same workload.

    places: kind of file -> how the paths of its files begin, from the folder of the description on; in the run other
    folders may stand before. Raises: UsageError where the run uses no such file; CaptureError when a part is damaged.
    """
    files = _Files(places)
    numbers = {"generated": files.number(generated), "run": files.number(run)}
    if not (numbers["run"] >= 0).any():
        raise UsageError(
            f"{run.named} has no file below {', '.join(places.values())}: give the folders of that run, such as "
            "dataset.data_folder=/where/it/was"
        )
    by_open = traces_opens(run, numbers["run"])
    group = np.array(files.groups, dtype=np.int64)
    sides = {
        "generated": file_visits(generated, numbers["generated"], group, by_open=by_open),
        "run": file_visits(run, numbers["run"], group, by_open=by_open),
    }
    checker = _Checker(files.names, group, sides["generated"], sides["run"])

    def visits(side: str, file: int) -> Counter[tuple[Request, ...]]:
        capture = generated if side == "generated" else run
        return visits_of_file(capture, numbers[side], file, by_open=by_open)

    found = {kind: checker.measures(place) for place, kind in enumerate(places)}
    kinds = {kind: measures for kind, measures in found.items() if measures}
    return RunCheck(
        kinds=kinds,
        ranks=checker.ranks(),
        differences=tuple(
            text for place, kind in enumerate(places) for text in checker.differences(place, kind, visits)
        ),
        notes=(*_written(kinds), *_notes(run, numbers["run"], by_open=by_open)),
    )


def _written(kinds: Mapping[str, Mapping[str, Measure]]) -> Iterator[str]:
    for kind, measures in kinds.items():
        if not measures["writes"].generated < measures["writes"].run or kind == CHECKPOINT:
            continue
        yield (
            f"The run writes files of the kind {kind}: it made its data set, too. Record one with "
            "workflow.generate_data=False."
        )


def _notes(run: Capture, numbers: np.ndarray, *, by_open: bool) -> Iterator[str]:
    others = int((numbers < 0).sum())
    if others:
        yield f"{format_counted(others, 'other file')} of the run lie elsewhere and are not compared."
    if not by_open:
        yield (
            "The trace of the run holds no opens. So the requests of a rank to a file are compared as one sequence, "
            "whose order is unknown if several threads of the rank use the file."
        )
    if run.info.partial:
        yield "The recording of the run was stopped before its end."
    share = run.info.coverage.bytes
    if share is None:
        yield "The share of the I/O of the run that its trace holds is not known."
    elif share < 1:
        yield f"The trace holds {min(share, 0.999):.1%} of the bytes of the run."


class _Files:
    """One numbering of the files of both captures by their paths from the folder of the description on."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = tuple(places.values())
        self._known: dict[str, int] = {}
        self.names: list[str] = []
        self.groups: list[int] = []

    def number(self, capture: Capture) -> np.ndarray:
        """int64 by file_id: the number of a file, -1 for one of no kind."""
        return np.array([self._number(path) for path in capture.paths()], dtype=np.int64)

    def _number(self, path: str) -> int:
        kind, begin = max(enumerate(path.rfind(place) for place in self._places), key=lambda found: found[1])
        if begin < 0:
            return -1
        name = path[begin:]
        if name not in self._known:
            self._known[name] = len(self.names)
            self.names.append(name)
            self.groups.append(kind)
        return self._known[name]


class _Checker:
    def __init__(self, names: list[str], group: np.ndarray, generated: FileVisits, run: FileVisits) -> None:
        self._names, self._group, self._sides = names, group, (generated, run)
        self._used = np.stack([side.counts.any(axis=1) for side in self._sides])
        self._unknown = {"requests": run.inferred, "order": run.inferred | run.shared}
        self._alike = {name: getattr(generated, name) == getattr(run, name) for name in self._unknown}
        # Operations rebuilt from counters are no evidence of equality either.
        self._alike["requests"] &= ~run.inferred
        self._alike["order"] &= ~run.inferred
        self._unknown["order"] &= ~self._alike["order"]

    def measures(self, kind: int) -> dict[str, Measure]:
        """The measures of a kind of file; none where neither side uses such a file."""
        mine = self._group == kind
        used = self._used & mine
        if not used.any():
            return {}
        found = {"files": Measure(generated=_sum(used[0]), run=_sum(used[1]), equal=bool((used[0] == used[1]).all()))}
        for place, name in enumerate(COUNTS):
            one, other = (side.counts[mine, place] for side in self._sides)
            found[name] = Measure(generated=_sum(one), run=_sum(other), equal=bool((one == other).all()))
        found["sizes"] = self._sizes(kind)
        for name, unknown in self._unknown.items():
            not_known, alike = unknown & used.any(axis=0), self._alike[name] & used[0]
            differs = (used.any(axis=0) & ~unknown & ~self._alike[name]).any()
            found[name] = Measure(
                generated=_sum(used[0]),
                run=_sum(alike),
                equal=False if differs else None if not_known.any() else True,
                not_known=_sum(not_known),
            )
        return found

    def _sizes(self, kind: int) -> Measure:
        one, other = ({key: count for key, count in side.sizes.items() if key[0] == kind} for side in self._sides)
        inferred = bool(self._sides[1].inferred[self._group == kind].any())
        return Measure(generated=len(one), run=len(other), equal=None if inferred else one == other)

    def ranks(self) -> Measure:
        """Ranks, whatever their numbers."""
        one, other = (side.ranks for side in self._sides)
        unknown = bool(self._sides[1].inferred.any()) and one.total() == other.total()
        return Measure(generated=one.total(), run=other.total(), equal=None if unknown else one == other)

    def differences(
        self, kind: int, name: str, visits: Callable[[str, int], Counter[tuple[Request, ...]]]
    ) -> Iterator[str]:
        """Files that only one side uses, and the first file that both use otherwise."""
        mine = self._group == kind
        for side, where in enumerate(("generated", "in the run")):
            only = np.flatnonzero(self._used[side] & ~self._used[1 - side] & mine)
            if len(only):
                yield f"{name}: {format_counted(len(only), 'file')} only {where}, first {self._names[only[0]]}"
        counted = (self._sides[0].counts != self._sides[1].counts).any(axis=1)
        wrong = counted | np.any([~self._alike[each] & ~self._unknown[each] for each in self._unknown], axis=0)
        both = np.flatnonzero(self._used.all(axis=0) & mine & wrong)
        if not len(both):
            return
        file = min(both.tolist(), key=self._names.__getitem__)
        differ = "file of this kind differs" if len(both) == 1 else "files of this kind differ"
        where = f"{name}: {self._names[file]} ({format_count(len(both))} {differ})"
        for place, what in enumerate(COUNTS):
            one, other = (int(side.counts[file, place]) for side in self._sides)
            if one != other:
                counts = f"{format_count(one)} generated, {format_count(other)} in the run"
                yield f"{where}: {what.replace('_', ' ')} {counts}"
        if not self._sides[1].inferred[file]:
            yield from _first_visits(where, visits("generated", file), visits("run", file))


def _first_visits(
    where: str, generated: Counter[tuple[Request, ...]], run: Counter[tuple[Request, ...]]
) -> Iterator[str]:
    """The first visit that one side has more often than the other, of each side."""
    for more, fewer, side in ((generated, run, "only generated"), (run, generated, "only in the run")):
        visit, count = next(iter((more - fewer).items()), ((), 0))
        if count:
            text = ", ".join(f"{OPS[op]} {length:,} B at {offset:,}" for op, offset, length in visit[:MOST_REQUESTS])
            rest = f" and {format_count(len(visit) - MOST_REQUESTS)} more" if len(visit) > MOST_REQUESTS else ""
            yield f"{where}: {side}, {format_counted(count, 'time')}: {text}{rest}"


def _sum(values: np.ndarray) -> int:
    return int(values.sum())
