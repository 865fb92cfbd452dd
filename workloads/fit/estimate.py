"""A fitted value with its evidence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxt_replay.traces.units import format_bytes, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The value of one key of the YAML.

    key: the section and the key, such as `reader.batch_size`.
    value: as YAML would give it: text, number, bool, list or dict.
    found: how it was found, in a few words.
    error: its possible deviation, and what does not fit; empty if it is exact.
    """

    key: str
    value: Any
    found: str
    error: str = ""

    @property
    def comment(self) -> str:
        """Evidence and error in one line."""
        return f"{self.found}; {self.error}" if self.error else self.found


def estimate(key: str, value: Any, found: str, *errors: str) -> Estimate:
    """The estimate of a key, with the non-empty ones of `errors`."""
    return Estimate(key=key, value=value, found=found, error="; ".join(filter(None, errors)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexpressed:
    """Operations of the capture that the description cannot hold, and why. `bytes`: read and written."""

    operations: int
    bytes: int
    reason: str

    def sentence(self, operations: int, moved: int) -> str:
        """For a person, as shares of all `operations` and of all `moved` bytes."""
        share = f"{_percent(self.operations, operations)} and {_percent(self.bytes, moved)}"
        return (
            f"not expressed: {format_count(self.operations)} operations, {format_bytes(self.bytes)} ({share}), "
            f"because {self.reason}"
        )


def relative(found: float, expected: float) -> str:
    """Deviation of a found value from the expected one, as text: `+1.3 %`; empty when they are equal."""
    if found == expected or not expected:
        return ""
    return f"{100 * (found / expected - 1):+.2g} %"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
