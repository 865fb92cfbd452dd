"""Facts about a run that are needed before its events can be read: names by hash, forks, ranks, the unit of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dxt_replay.profiler_merge.tracers.dftracer.pfw_events import PfwEvent, number, pfw_events
from dxt_replay.profiler_merge.tracers.text_lines import Damage
from dxt_replay.traces.errors import LogError

_WANTED = re.compile(rb'"name": ?"(FH|HH|PR|CM|SH|start|end|fork|process_name)"')
_UNITS = {"NS": 1, "US": 1_000, "MS": 1_000_000, "S": 1_000_000_000}
_RANK = re.compile(r"Rank (\d+)")


@dataclass(slots=True)
class RunFacts:
    """Facts of all files of a run.

    names: path by hash. collisions: hashes that stand for several paths, as the 16 bits of DFTracer 1.0.5 do.
    forked: child -> parent, where the child writes into its parent's file under the parent's pid.
    parents: pid -> parent's pid. ranks: pid -> rank. commands: pid -> hash of its command.
    hosts: name of the host by hash; "" for a hash that stands for several.
    folders: pid -> hash of its working directory. unit_ns: of the times. ended: files with an end mark.
    """

    names: dict[int | str, str] = field(default_factory=dict)
    collisions: set[int | str] = field(default_factory=set)
    forked: dict[int, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    folders: dict[int, int | str] = field(default_factory=dict)
    hosts: dict[int | str | None, str] = field(default_factory=dict)
    unit_ns: int = 1_000
    ended: set[Path] = field(default_factory=set)
    started: set[Path] = field(default_factory=set)

    def note(self, path: Path, event: PfwEvent) -> None:
        """Note the facts of an event."""
        args = event.args
        if args is None:
            return
        pid, tid = number(event.pid), number(event.tid)
        if event.name == "FH" and args.value is not None and args.name is not None:
            if self.names.setdefault(args.value, args.name) != args.name:
                self.collisions.add(args.value)
        elif event.name == "HH" and args.value is not None and args.name is not None:
            if self.hosts.setdefault(args.value, args.name) != args.name:
                self.hosts[args.value] = ""
        elif event.name == "fork" and event.cat == "POSIX":
            child = number(args.ret)
            if child > 0:
                self.forked[child] = tid
            elif child == 0 and tid != pid:
                self.forked.setdefault(tid, pid)
        elif event.name == "start" and event.cat == "dftracer":
            self.started.add(path)
            self.parents[pid] = number(args.ppid)
            if args.cwd is not None:
                self.folders[pid] = args.cwd
        elif event.name == "end" and event.cat == "dftracer":
            self.ended.add(path)
        elif event.name == "PR" and args.name == "rank":
            self.ranks[pid] = number(args.value)
        elif event.name == "process_name" and args.name is not None and (found := _RANK.fullmatch(args.name)):
            self.ranks.setdefault(pid, int(found[1]))
        elif event.name == "CM" and args.name == "time_metric":
            self._set_unit(path, str(args.value))

    def _set_unit(self, path: Path, unit: str) -> None:
        if unit.upper() not in _UNITS:
            raise LogError(f"{path} counts its times in {unit!r}, which this release does not know: update dxt-replay")
        self.unit_ns = _UNITS[unit.upper()]


def run_facts(files: Sequence[Path]) -> RunFacts:
    """The facts of a run, from a first pass over its files. Raises: LogError."""
    facts = RunFacts()
    for path in files:
        for event in pfw_events(path, Damage(), lambda line: _WANTED.search(line) is not None):
            facts.note(path, event)
    return facts
