"""The checks and their differences: the rows of the table that `dxt-replay verify` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dxt_replay.replay.target.writing import default_workers
from dxt_replay.traces.text import printable

MOST_KEPT = 1000
"""Differences of one row that are kept with their text; all of them are counted."""

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it was written.

    file: path below the capture or target.
    what: the property that differs, such as "size" or "SHA-256".
    expected, found: its values, for a person.
    offset: of the first byte that differs, where that is known.
    """

    file: str
    what: str
    expected: str
    found: str
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class CheckedPart:
    """One row: a part of a capture or a twin that was looked at.

    checked: how many things of the kind `unit` were held against what they should be.
    bytes: how many bytes were read for that.
    differences: the first MOST_KEPT; `different` counts all.
    note: what was not checked, and why.
    """

    part: str
    unit: str
    checked: int = 0
    bytes: int = 0
    differences: list[Difference] = field(default_factory=list)
    different: int = 0
    note: str = ""

    def differs(self, file: str, what: str, expected: object, found: object, offset: int | None = None) -> None:
        """Count a difference."""
        self.count([Difference(file=file, what=what, expected=str(expected), found=str(found), offset=offset)])

    def count(self, differences: Iterable[Difference]) -> None:
        """Count differences that were found elsewhere."""
        for difference in differences:
            self.different += 1
            if len(self.differences) < MOST_KEPT:
                self.differences.append(difference)

    def as_json(self) -> dict[str, Any]:
        """The row as an object; its differences are listed by `Verified`."""
        return {
            "part": self.part,
            "unit": self.unit,
            "checked": self.checked,
            "bytes": self.bytes,
            "different": self.different,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPlace:
    """A capture or a target, and what was checked of it. `kind`: "capture" or "twin"."""

    path: str | Path
    kind: str
    parts: tuple[CheckedPart, ...]

    @property
    def different(self) -> int:
        """Number of differences found."""
        return sum(part.different for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """The place as an object."""
        return {
            "path": printable(self.path),
            "kind": self.kind,
            "different": self.different,
            "checked": [part.as_json() for part in self.parts],
            "differences": [asdict(difference) for part in self.parts for difference in part.differences],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of `dxt_replay.verify`: one place for each path that was given."""

    places: tuple[VerifiedPlace, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not any(place.different for place in self.places)

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay verify --json` prints."""
        return {"passed": self.passed, "places": [place.as_json() for place in self.places]}


def in_threads(work: Callable[[_Task], _Answer], tasks: Iterable[_Task]) -> list[_Answer]:
    """The answers in the order of the tasks; hashing, reading and comparing run without the interpreter's lock."""
    with ThreadPoolExecutor(default_workers(), thread_name_prefix="verify") as pool:
        try:
            return list(pool.map(work, tasks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
