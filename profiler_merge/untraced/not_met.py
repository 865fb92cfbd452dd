"""Lists the counters that rebuilt operations do not meet, by file, with a limit and the number beyond it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dxt_replay.profiler_merge.untraced.transfers import SIZES, TOP, WAYS

MOST_LISTED = 1000
"""Most entries of the list; further ones are only counted."""


def counter_names(module: str, name: str, way: int) -> tuple[str, ...]:
    """Darshan's counters behind a field of `Transfers`; `way`: 0 for reads, 1 for writes."""
    direction, ways, done = WAYS[way]
    found = {
        "count": (ways,),
        "moved": (f"BYTES_{done}",),
        "sizes": tuple(f"SIZE_{direction}_{size}" for size in SIZES),
        "end": (f"MAX_BYTE_{done}",),
        "seq": (f"SEQ_{ways}",),
        "consec": (f"CONSEC_{ways}",),
        "access_count": tuple(f"ACCESS{place + 1}_COUNT" for place in range(TOP)),
        "stride_count": tuple(f"STRIDE{place + 1}_COUNT" for place in range(TOP)),
    }
    return tuple(f"{module}_{each}" for each in found[name])


@dataclass(slots=True)
class NotMet:
    """A list of counters with the counted value and that of the rebuilt operations."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def room(self, wanted: int) -> int:
        """Number of `wanted` further entries that fit the list; counts the others."""
        kept = min(wanted, MOST_LISTED - len(self.entries))
        self.left_out += wanted - kept
        return kept

    def add(self, path: str, rank: int | None, counter: str, counted: int, rebuilt: int) -> None:
        """List an entry. `rank`: None for the sum over all ranks."""
        self.entries.append(
            {"file": path, "rank": rank, "counter": counter, "counted": counted, "rebuilt": rebuilt}
        )  # fmt: skip

    def add_all(self, other: NotMet) -> None:
        """Append another list; beyond the limit only count."""
        self.entries += other.entries[: self.room(len(other.entries))]
        self.left_out += other.left_out

    def example(self) -> str:
        """The first entry in words."""
        first = self.entries[0]
        whose = "of all ranks" if first["rank"] is None else f"of rank {first['rank']}"
        return f"{first['counter']} {whose} for {first['file']}: {first['counted']} counted, {first['rebuilt']} rebuilt"

    def as_json(self) -> dict[str, Any]:
        """The keys `not_met` and `not_met_left_out` of `rebuilt` in capture.json."""
        return {"not_met": list(self.entries), "not_met_left_out": self.left_out}
