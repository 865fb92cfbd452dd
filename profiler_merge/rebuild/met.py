"""How well rebuilt reads and writes meet the counters from which they were made: by module, counter and file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.rebuild.counted import MODULES, SIZES, WAYS
from dxt_replay.traces.units import format_bytes, format_count

MOST_LISTED = 1000
"""Most entries of the list; further ones are only counted."""

COMPARED = {
    "count": ("operations", "{ways}"),
    "moved": ("bytes", "BYTES_{done}"),
    "sizes": ("size_bins", "SIZE_{way}_{size}"),
    "end": ("highest_offset", "MAX_BYTE_{done}"),
    "seq": ("sequential", "SEQ_{ways}"),
    "consec": ("consecutive", "CONSEC_{ways}"),
}
"""Counters of COUNTED that are compared -> their names in capture.json, and in Darshan."""

_SUMS = ("operations", "bytes", "dealt_to_ranks", "streams", "streams_met")


class Met:
    """Adds up rebuilt operations and the counters that they meet.

    by_module: operations, bytes, dealt_to_ranks (operations of reduced records), streams (a rank's reads or writes of a
    file), streams_met (those that meet all counters). missed: streams that miss a counter, by module and counter.
    """

    def __init__(self) -> None:
        self.by_module: dict[str, Counter[str]] = {name: Counter() for name in MODULES}
        self.missed: dict[str, Counter[str]] = {name: Counter() for name in MODULES}
        self.not_met: list[dict[str, Any]] = []
        self.left_out = 0

    @property
    def operations(self) -> int:
        """Reads and writes at all modules."""
        return sum(each["operations"] for each in self.by_module.values())

    def note(
        self, module: str, files: np.ndarray, got: np.ndarray, ranks: np.ndarray, names: Mapping[int, bytes]
    ) -> None:
        """Note what was rebuilt (GOT) of some files (COUNTED, without what is traced) at one module.

        ranks: of the processes; names: by record id."""
        reduced, made = files["shares"] > 1, got["rows"] > 0
        good = made.copy()
        for name, (called, counter) in COMPARED.items():
            if name in ("seq", "consec", "end"):
                # No counter says in which order, or where, one rank of a reduced record worked.
                known = (files[name] >= 0) & (files["traced"] == 0) & ~reduced[:, np.newaxis]
            else:
                known = name != "sizes" or files[name].sum(axis=2) == files["count"]
            wanted, found = (each[name].reshape(*made.shape, -1) for each in (files, got))
            wrong = (wanted != found) & (known & made)[..., np.newaxis]
            self.missed[module][called] += int(wrong.any(axis=2).sum())
            good &= ~wrong.any(axis=2)
            places = np.argwhere(wrong)
            kept = places[: MOST_LISTED - len(self.not_met)]
            self.left_out += len(places) - len(kept)
            for file, way, value in kept.tolist():
                words = dict(zip(("way", "ways", "done"), WAYS[way], strict=True), size=SIZES[value])
                record, less = int(files["record_id"][file]), name == "end"  # Darshan counts that of the last byte
                whole = reduced[file] and name in ("count", "moved", "sizes")
                self.not_met.append(
                    {
                        "file": names.get(record, b"<record %d>" % record).decode("utf-8", "backslashreplace"),
                        "rank": None if whole else int(ranks[files["process"][file]]),
                        "counter": f"{module}_{counter.format(**words)}",
                        "counted": int(wanted[file, way, value]) - less,
                        "rebuilt": int(found[file, way, value]) - less,
                    }
                )
        totals = got["rows"].sum(), got["bytes"].sum(), got["rows"][reduced].sum(), made.sum(), good.sum()
        self.by_module[module].update(dict(zip(_SUMS, map(int, totals), strict=True)))

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
        every, missed = (sum(each.values(), Counter[str]()) for each in (self.by_module, self.missed))
        if every["streams_met"] < every["streams"]:
            counts = ", ".join(
                f"{name.replace('_', ' ')} in {missed[name]}" for name, _ in COMPARED.values() if missed[name]
            )
            first = self.not_met[0]
            whose = "of all ranks" if first["rank"] is None else f"of rank {first['rank']}"
            found.append(
                f"the rebuilt operations have the counted values in {every['streams_met']} of {every['streams']} cases "
                "(a case is everything that a rank read, or wrote, of a file); they differ in: "
                f"{counts} (for example {first['counter']} {whose} for {first['file']}: {first['counted']} counted, "
                f"{first['rebuilt']} rebuilt; `rebuilt.not_met` of --json lists them)"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """The object `rebuilt` of capture.json: of POSIX, then by module, and the counters that are not met."""
        modules = {
            module: {key: self.by_module[module][key] for key in _SUMS}
            | {"missed": {name: self.missed[module][name] for name, _ in COMPARED.values()}}
            for module in MODULES
        }
        return {
            **modules["POSIX"],
            "modules": {module: each for module, each in modules.items() if each["operations"]},
            "not_met": list(self.not_met),
            "not_met_left_out": self.left_out,
        }
