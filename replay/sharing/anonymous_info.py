"""`capture.json` of an anonymized capture: numbers stay, text is replaced, dates are gone. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dxt_replay.replay.sharing.anonymous_names import AnonymousNames
from dxt_replay.replay.sharing.public_words import SOURCE_KINDS, WORDS
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.part import Part
from dxt_replay.traces.records import benchmark_run, is_replay
from dxt_replay.traces.schema import SCHEMA_VERSION, CaptureInfo, Job, RankClock, Source, Unseen
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.unseen import WRITTEN
from dxt_replay.traces.version import VERSION

_KEY = re.compile(r"[a-z][a-z0-9_]{0,40}|[A-Z][A-Z0-9_-]{0,20}|-?\d{1,20}")
"""Keys that dxt-replay itself writes: names of values, errors (ENOENT) and modules (POSIX), and ranks."""

_HINT = re.compile(r"\s*[a-z_]{1,40}\s*=\s*(?:true|false|enable|disable|automatic|\d{1,12})\s*")
"""A hint of MPI-IO without a name in its value; `cb_config_list` names hosts."""

_RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,3}")
_MILLISECOND = 1_000_000


def _unnamed(unseen: Iterable[Unseen]) -> Iterator[Unseen]:
    for number, each in enumerate(unseen):
        yield dataclasses.replace(each, name=f"{each.kind}-{number}")


def anonymous_info(capture: Capture, names: AnonymousNames, own: Source, stored: int) -> CaptureInfo:
    """What `capture.json` says of the anonymized capture, which has `stored` operations.

    `own`: the capture itself as a source (`as_source`): a replay that is anonymized under the same key is known as its
    replay by it.
    """
    info = capture.info
    sources = (own, *info.sources)
    left_out = f"warnings of the original capture that are left out, since they may name files: {len(info.warnings)}"
    return dataclasses.replace(
        info,
        job=_job(info, names),
        sources=tuple(_source(number, source, names) for number, source in enumerate(sources)),
        clock=tuple(_clock(clock, names) for clock in info.clock),
        lanes=info.lanes if info.lanes in WORDS else "overlap",
        coverage=dataclasses.replace(info.coverage, unseen=tuple(_unnamed(info.coverage.unseen))),
        warnings=(left_out,) if info.warnings else (),
        made_by=_made_by(capture, names, stored),
        schema_version=SCHEMA_VERSION,
    )


def _job(info: CaptureInfo, names: AnonymousNames) -> Job:
    job = info.job
    metadata = {}
    if hints := ";".join(text for text in job.metadata.get("h", "").split(";") if _HINT.fullmatch(text)):
        metadata["h"] = hints  # a replay through MPI-IO needs them
    if _RELEASE.fullmatch(job.metadata.get("lib_ver", "")):
        metadata["lib_ver"] = job.metadata["lib_ver"]
    if (benchmark := benchmark_run(info)) is not None:
        named = dataclasses.replace(benchmark, workload=names.word(benchmark.workload), overrides=())
        metadata |= named.as_metadata()
    dated = job.start_ns > 0 and job.end_ns >= job.start_ns
    return Job(
        nprocs=job.nprocs,
        run_time_s=job.run_time_s,
        start_ns=job.start_ns - job.zero_ns if dated else 0,
        end_ns=job.end_ns - job.zero_ns if dated else 0,
        metadata=metadata,
    )


def _source(number: int, source: Source, names: AnonymousNames) -> Source:
    kind = source.kind if source.kind in SOURCE_KINDS else "other"
    return Source(name=f"{kind.replace(' ', '-')}-{number}", sha256=names.checksum(source.sha256), kind=kind)


def _clock(clock: RankClock, names: AnonymousNames) -> RankClock:
    """The clock with its evidence; the offset loses its whole milliseconds, which may count from 1970 or from the boot
    of the machine."""
    moved = clock.offset_ns - clock.offset_ns % _MILLISECOND
    low, high = clock.interval_ns
    return dataclasses.replace(
        clock,
        method=names.word(clock.method),
        offset_ns=clock.offset_ns - moved,
        interval_ns=(low - moved, high - moved),
    )


def _made_by(capture: Capture, names: AnonymousNames, stored: int) -> dict[str, Any]:
    made_by = dict(capture.info.made_by)
    selection = made_by.pop("selection", None)
    version = str(made_by.pop("version", VERSION))
    found = {name: _scrubbed(value, names) for name, value in made_by.items() if _KEY.fullmatch(name)}
    if WRITTEN in made_by:
        known = set(made_by[WRITTEN])
        paths = zip(capture.paths(), exact_paths(capture.files), strict=True)
        found[WRITTEN] = [names.path(exact) for path, exact in paths if path in known]
    if "doubt" in made_by:  # it may name files and programs
        found["doubt"] = "so it was of the capture that this one was made from"
    if is_replay(capture.info):
        found["selection"] = None if selection is None else _selection(capture, Part.from_json(selection), names)
    release = version if _RELEASE.fullmatch(version) else VERSION
    return {**found, "program": "dxt-replay", "version": release, "operations_stored": stored, "anonymized": True}


def _selection(capture: Capture, part: Part, names: AnonymousNames) -> Mapping[str, Any]:
    """The part that a replay replayed; its patterns become the list of the paths that they match."""
    if not part.paths and not part.exclude:
        return part.as_json()
    chosen = part.file_mask(capture.paths())
    paths = [names.path(path) for path, mine in zip(exact_paths(capture.files), chosen, strict=True) if mine]
    return dataclasses.replace(part, paths=tuple(paths), exclude=()).as_json()


def _scrubbed(value: Any, names: AnonymousNames) -> Any:
    """The value with its numbers, and with other text and keys than dxt-replay's own replaced."""
    if isinstance(value, Mapping):
        return {key if _KEY.fullmatch(key) else names.word(key): _scrubbed(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item, names) for item in value]
    return names.word(value) if isinstance(value, str) else value
