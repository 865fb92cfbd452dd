"""What an examination finds: checks in parts, as `dxt-replay doctor` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dxt_replay.traces.plain import plain


class State(Enum):
    """How good a fact is. Only FAILED means that something needed is broken."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A fact about the machine.

    name: the thing. found: what was seen, for a person. remedy: what to do, empty where nothing needs to be done.
    """

    name: str
    found: str
    state: State = State.OK
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The checks of one subject, such as MPI."""

    name: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of `dxt_replay.doctor`. directory: the one that was examined, or the URL of an
    object store; None without one."""

    directory: str | None
    parts: tuple[Part, ...]

    def count(self, state: State) -> int:
        """Number of checks in a state."""
        return sum(check.state is state for part in self.parts for check in part.checks)

    @property
    def passed(self) -> bool:
        """Whether nothing that is needed is broken."""
        return not self.count(State.FAILED)

    def as_json(self) -> Mapping[str, Any]:
        """The object that `dxt-replay doctor --json` prints."""
        return {"passed": self.passed, **plain(self)}
