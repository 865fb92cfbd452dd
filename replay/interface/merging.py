"""Merges recordings into a capture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.options.choices import PathLike, PathMaps
from dxt_replay.replay.options.making import MergeChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.errors import ProfileError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.profiler_merge.merge import MergeResult
    from dxt_replay.profiler_merge.recorded_job import MergeOptions
    from dxt_replay.replay.target.placement import PathMap


@takes(MergeChoices)
def merge(
    logs: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    force: bool = False,
    **choices: Unpack[MergeChoices],
) -> MergeResult:
    """Merge the Darshan logs of one job, and the profiles of its ranks, into the capture `output`.

    `logs` can also be traces of strace or DFTracer, profiles alone (for a capture without I/O), or a folder of
    logs. `profiles` are log directories, or single files: `.xplane.pb` of TensorFlow and JAX, `.pt.trace.json` of
    PyTorch. `exclude` has globs over recorded paths. `reconstruct=False` leaves out operations rebuilt from counters.
    `force` replaces an earlier capture.

        merged = dxt_replay.merge("logs", "run.capture", profiles="profile")

    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    from dxt_replay.profiler_merge.recorded_job import MergeOptions

    chosen = filled(MergeChoices, choices)
    profiles, maps = chosen.pop("profiles"), chosen.pop("maps")
    if maps and not chosen["inspect"]:
        raise UsageError("--map (maps) says where --inspect (inspect) looks: give --inspect too, or leave --map out")
    rules = tuple((b"/" + b"/".join(rule.prefix), rule.directory) for rule in path_maps(maps))
    chosen["exclude"] = tuple(chosen["exclude"])
    options = MergeOptions(**chosen, inspect_maps=rules, force=force)
    return merge_found(several(logs), several(profiles), Path(output), options)


def merge_found(logs: Sequence[Path], profiles: Sequence[Path], output: Path, options: MergeOptions) -> MergeResult:
    """As `merge`, with any options."""
    from dxt_replay.profiler_merge.merge import merge as merge_sources

    return merge_sources(
        [log for path in logs for log in _logs_of(path)],
        [file for path in profiles for file in _profiles_of(path)],
        output,
        options,
    )


def path_maps(maps: PathMaps | None) -> tuple[PathMap, ...]:
    """The rules of `maps`. Raises: UsageError for a prefix that is not an absolute path."""
    if not maps:
        return ()
    from dxt_replay.replay.target.placement import parse_map

    if isinstance(maps, Mapping):
        maps = [f"{prefix}={os.fspath(directory)}" for prefix, directory in maps.items()]
    return tuple(parse_map(text) for text in maps)


def several(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """One path or many, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def _logs_of(path: Path) -> list[Path]:
    """The logs or traces at a path. Raises: LogError for a folder without any, which lists what it holds."""
    from dxt_replay.profiler_merge.given_files import find_recordings

    return find_recordings(path)


def _profiles_of(directory: Path) -> list[Path]:
    """The profiles at a path. Raises: ProfileError without any, so that no capture silently lacks its profile."""
    from dxt_replay.profiler_merge.given_files import find_profiles, foreign
    from dxt_replay.profiler_merge.sources import PROFILES, SPANS

    found = find_profiles(directory)
    if not found:
        missing = (
            f"{directory} holds neither an .xplane.pb nor a .pt.trace.json profile: did the profiler run, and was it "
            "stopped?"
        )
        raise ProfileError(foreign(directory, *PROFILES, *SPANS) or missing)
    return found
