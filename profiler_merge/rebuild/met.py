"""How well rebuilt reads and writes meet the counters from which they were made: by module, counter and file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dxt_replay.profiler_merge.rebuild.counted import MODULES, SIZES, WAYS
from dxt_replay.traces.units import format_bytes, format_count

MOST_LISTED = 1000
"""Most entries of the list; further ones are only counted."""

NAMES = {
    "count": "operations",
    "moved": "bytes",
    "sizes": "size_bins",
    "end": "highest_offset",
    "seq": "sequential",
    "consec": "consecutive",
}
"""Counters of COUNTED that are compared -> their names in capture.json."""


class Found(NamedTuple):
    """The reads and writes rebuilt of some files (COUNTED, without what is traced) of a module, counted again (GOT)."""

    module: str
    files: np.ndarray
    got: np.ndarray


@dataclass(slots=True)
class Met:
    """Adds up rebuilt operations and the counters that they meet.

    by_module: operations, bytes, dealt_to_ranks (operations of reduced records), streams (a rank's reads or writes of a
    file) and streams_met (those that meet all counters). missed: streams that miss a counter, by module and counter.
    """

    by_module: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MODULES})
    missed: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MODULES})
    not_met: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    @property
    def operations(self) -> int:
        """Reads and writes at all modules."""
        return sum(each["operations"] for each in self.by_module.values())

    def note(self, found: Found, ranks: np.ndarray, names: Mapping[int, bytes]) -> None:
        """Note what was rebuilt of some processes at one module. ranks: of the processes; names: by record id."""
        module, files, got = found
        reduced, ways = files["shares"] > 1, (len(files), 2)
        good = got["rows"] > 0
        sums = {
            "operations": got["rows"].sum(),
            "bytes": got["bytes"].sum(),
            "dealt_to_ranks": got["rows"][reduced].sum(),
            "streams": good.sum(),
        }
        made = good.copy()
        for name, called in NAMES.items():
            wanted = files[name]
            if name in ("seq", "consec", "end"):
                # No counter says in which order, or where, one rank of a reduced record worked.
                known = (wanted >= 0) & (files["traced"] == 0) & ~reduced[:, np.newaxis]
            elif name == "sizes":
                known = wanted.sum(axis=2) == files["count"]
            else:
                known = np.ones(ways, dtype=bool)
            wrong = (wanted != got[name]).reshape(*ways, -1) & (known & made)[..., np.newaxis]
            self._list(found, name, wrong, wanted.reshape(wrong.shape), ranks, names)
            self.missed[module][called] += int(wrong.any(axis=2).sum())
            good &= ~wrong.any(axis=2)
        self.by_module[module].update(
            {name: int(each) for name, each in sums.items()} | {"streams_met": int(good.sum())}
        )

    def _list(
        self,
        found: Found,
        name: str,
        wrong: np.ndarray,
        wanted: np.ndarray,
        ranks: np.ndarray,
        names: Mapping[int, bytes],
    ) -> None:
        """Put the counters where `wrong` (files, 2, values) on the list."""
        places = np.argwhere(wrong)
        kept = places[: MOST_LISTED - len(self.not_met)]
        self.left_out += len(places) - len(kept)
        less = name == "end"  # the highest offset is counted as that of the last byte
        for file, way, value in kept.tolist():
            direction, ways, done = WAYS[way]
            counter = {
                "count": ways,
                "moved": f"BYTES_{done}",
                "sizes": f"SIZE_{direction}_{SIZES[value]}",
                "end": f"MAX_BYTE_{done}",
                "seq": f"SEQ_{ways}",
                "consec": f"CONSEC_{ways}",
            }[name]
            record = int(found.files["record_id"][file])
            whole = found.files["shares"][file] > 1 and name in ("count", "moved", "sizes")
            self.not_met.append(
                {
                    "file": names.get(record, b"<record %d>" % record).decode("utf-8", "backslashreplace"),
                    "rank": None if whole else int(ranks[found.files["process"][file]]),
                    "counter": f"{found.module}_{counter}",
                    "counted": int(wanted[file, way, value]) - less,
                    "rebuilt": int(found.got[name].reshape(wanted.shape)[file, way, value]) - less,
                }
            )

    def add(self, other: Met) -> None:
        """Add the notes on the next ranks."""
        for module in MODULES:
            self.by_module[module].update(other.by_module[module])
            self.missed[module].update(other.missed[module])
        kept = other.not_met[: MOST_LISTED - len(self.not_met)]
        self.left_out += other.left_out + len(other.not_met) - len(kept)
        self.not_met += kept

    def warnings(self) -> list[str]:
        """Warnings about the rebuilt operations."""
        posix, found = self.by_module["POSIX"], []
        if posix["operations"]:
            found.append(
                f"{format_count(posix['operations'])} reads and writes ({format_bytes(posix['bytes'])}) that no trace "
                "holds are rebuilt from counters and marked as reconstructed: their number and bytes are counted, "
                "their order, places and single times are inferred"
            )
        if posix["dealt_to_ranks"]:
            found.append(
                f"{format_count(posix['dealt_to_ranks'])} of these operations are of files whose counters Darshan "
                "added up over all ranks: it is inferred which rank issued them"
            )
        every, missed = Counter[str](), Counter[str]()
        for module in MODULES:
            every.update(self.by_module[module])
            missed.update(self.missed[module])
        if every["streams_met"] == every["streams"]:
            return found
        counts = ", ".join(f"{name.replace('_', ' ')} in {missed[name]}" for name in NAMES.values() if missed[name])
        first = self.not_met[0]
        whose = "of all ranks" if first["rank"] is None else f"of rank {first['rank']}"
        example = (
            f"{first['counter']} {whose} for {first['file']}: {first['counted']} counted, {first['rebuilt']} rebuilt"
        )
        return [
            *found,
            f"the rebuilt operations have the counted values in {every['streams_met']} of {every['streams']} cases (a "
            f"case is everything that a rank read, or wrote, of a file); they differ in: {counts} (for example "
            f"{example}; `rebuilt.not_met` of --json lists them)",
        ]

    def as_json(self) -> dict[str, Any]:
        """The object `rebuilt` of capture.json: of POSIX, then by module, and the counters that are not met."""
        keys = ("operations", "bytes", "dealt_to_ranks", "streams", "streams_met")
        modules = {
            module: {key: self.by_module[module][key] for key in keys}
            | {"missed": {name: self.missed[module][name] for name in NAMES.values()}}
            for module in MODULES
        }
        return {
            **modules["POSIX"],
            "modules": {module: each for module, each in modules.items() if each["operations"]},
            "not_met": list(self.not_met),
            "not_met_left_out": self.left_out,
        }
