"""A part of a capture: which ranks, times, steps, files, operations and interfaces. Only this module parses one. Pure.

`traces.store.part_capture.part_of` turns it into a capture that reads like any other, so that a summary, a replay and a
comparison need no code for parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import numpy as np

from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.schema import APIS, OPS
from dxt_replay.traces.units import parse_duration_ns

INTERFACES = {
    "POSIX": ("POSIX",),
    "STDIO": ("STDIO",),
    "MPIIO": ("MPIIO", "MPIIO_COLL"),
    "HDF5": ("HDF5",),
    "MMAP": ("MMAP",),
    "S3": ("S3", "S3_REFUSED"),
}
"""Interface -> the values of the `api` column that belong to it."""


KEYS = {
    "ranks": "ranks",
    "from": "begin",
    "until": "until",
    "steps": "steps",
    "path": "paths",
    "exclude": "exclude",
    "op": "operations",
    "api": "interfaces",
}
"""Key of --part -> the keyword of `Part.parse`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Conditions that must all hold; a condition that is not given holds for everything.

    ranks: recorded ranks, ascending.
    from_ns, until_ns: a window of time. An operation belongs to the window in which it starts, so that windows add up.
    steps: the first and the last training step. Each rank has its own window, as ranks run a step at different times.
    paths: shell patterns, one of which must match the whole path (`*` matches `/`).
    exclude: shell patterns, none of which may match.
    operations: names of `traces.schema.OPS`.
    interfaces: names of INTERFACES.

    Spans are cut at the ends of a window; a cut step keeps its times and loses its number.
    Raises: UsageError for an unknown name, an empty range, or a window given both in time and in steps.
    """

    ranks: tuple[int, ...] | None = None
    from_ns: int | None = None
    until_ns: int | None = None
    steps: tuple[int, int] | None = None
    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and self.is_window:
            raise UsageError("--part steps= and from= or until= both choose a window: give one of them")
        if self.from_ns is not None and self.until_ns is not None and self.until_ns <= self.from_ns:
            raise UsageError("the window of --part is empty: give until= a later time than from=")
        if self.steps is not None and self.steps[1] < self.steps[0]:
            raise UsageError(f"--part steps={self.steps[0]}-{self.steps[1]}: give the first step first")
        given = (("operation", self.operations, OPS), ("interface", self.interfaces, tuple(INTERFACES)))
        for noun, names, known in given:
            for name in names:
                if name not in known:
                    raise UsageError(f"there is no {noun} {name!r}: choose from {', '.join(known)}")

    @classmethod
    def parse(
        cls,
        *,
        ranks: str | None = None,
        begin: str | None = None,
        until: str | None = None,
        steps: str | None = None,
        paths: Sequence[str] = (),
        exclude: Sequence[str] = (),
        operations: Sequence[str] = (),
        interfaces: Sequence[str] = (),
    ) -> Part:
        """Make one from command-line words: ranks `0-15,20`, times as for `parse_duration_ns`, steps `100-200`.

        Names of operations and interfaces are read in either case. Raises: UsageError.
        """
        numbers: set[int] = set()
        for text in [] if ranks is None else ranks.split(","):
            first, last = _range(text, "--part ranks")
            if last < first:
                raise UsageError(f"--part ranks={text}: give the first rank first")
            numbers.update(range(first, last + 1))
        return cls(
            ranks=None if ranks is None else tuple(sorted(numbers)),
            from_ns=None if begin is None else parse_duration_ns(begin, "--part from"),
            until_ns=None if until is None else parse_duration_ns(until, "--part until"),
            steps=None if steps is None else _range(steps, "--part steps"),
            paths=tuple(paths),
            exclude=tuple(exclude),
            operations=tuple(name.lower() for name in operations),
            interfaces=tuple(name.upper() for name in interfaces),
        )

    @classmethod
    def named(cls, texts: Sequence[str]) -> Part:
        """Make one from texts such as "steps=10-19,path=*.h5"; what has no KEY= belongs to the value before it.

        Raises: UsageError.
        """
        found: dict[str, list[str]] = {}
        for text in texts:
            for word in re.split(rf",(?=(?:{'|'.join(KEYS)})=)", text):
                key, equals, value = word.strip().partition("=")
                if key not in KEYS or not equals:
                    raise UsageError(f"--part {word!r}: give KEY=VALUE with one of the keys {', '.join(KEYS)}")
                found.setdefault(key, []).append(value)
        for key in ("ranks", "from", "until", "steps"):
            if len(found.get(key, ())) > 1:
                raise UsageError(f"--part gives {key} twice: {' and '.join(found[key])}")
        listed = ("path", "exclude", "op", "api")
        given = {KEYS[key]: values if key in listed else values[0] for key, values in found.items()}
        return cls.parse(**given)  # type: ignore[arg-type]

    @property
    def is_everything(self) -> bool:
        """Whether it leaves nothing out."""
        return self == Part()

    @property
    def is_window(self) -> bool:
        """Whether it is bounded by times (and not by steps)."""
        return self.from_ns is not None or self.until_ns is not None

    @property
    def takes_whole_files(self) -> bool:
        """Whether the part has all or none of the operations of each file, so that the files' counters hold for it."""
        by_row = self.operations or self.interfaces or self.steps or self.is_window
        return self.ranks is None and not by_row

    def file_mask(self, paths: Sequence[str]) -> np.ndarray:
        """bool (files,): which of these paths are in the part."""
        return np.array(
            [
                (not self.paths or any(fnmatchcase(path, pattern) for pattern in self.paths))
                and not any(fnmatchcase(path, pattern) for pattern in self.exclude)
                for path in paths
            ],
            dtype=bool,
        )

    @property
    def op_mask(self) -> np.ndarray:
        """bool (ops,) by code: which operations are in the part."""
        return np.isin(OPS, self.operations or OPS)

    @property
    def api_mask(self) -> np.ndarray:
        """bool (apis,) by code: the interfaces whose operations are in the part."""
        return np.isin(APIS, [api for name in self.interfaces or INTERFACES for api in INTERFACES[name]])

    def as_json(self) -> dict[str, Any]:
        """Plain values from which `from_json` makes the same part; patterns and names only if some are given."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if value != []}

    @classmethod
    def from_json(cls, document: object) -> Part:
        """The part that `as_json` described; everything for None. Raises: CaptureError for anything else."""
        try:
            return cls() if document is None else msgspec.convert(document, cls)
        except (msgspec.ValidationError, UsageError) as error:
            raise CaptureError(
                f"the replay's selection {document!r} is damaged ({error}): run the replay again"
            ) from error


def _range(text: str, option: str) -> tuple[int, int]:
    first, dash, last = text.strip().partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise UsageError(f"{option} {text!r} is not a number or a range of numbers: write for example 100-200")
    return int(first), int(last if dash else first)
