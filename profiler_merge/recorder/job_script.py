"""The shell script that starts one process of the job under its tracer. Pure.

A launcher starts it in each rank, on any node. It sets everything itself, because launchers may not pass the
environment on.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dxt_replay.profiler_merge.recorder.recording_folder import DAYS_AHEAD
from dxt_replay.profiler_merge.recorder.tracer import LOGS, OF_RANK, Tracer
from dxt_replay.profiler_merge.recording import FOLDER_VARIABLE, RANK_VARIABLES
from dxt_replay.profiler_merge.request_hooks.log import FOLDER_VARIABLE as FOLDER_OF_REQUESTS
from dxt_replay.profiler_merge.request_hooks.log import ROOT_VARIABLE


def script_text(
    tracer: Tracer, *, logs: Path, profiles: Path, by_rank: bool, dated: bool, python: Path | None = None
) -> str:
    """The text of a script that takes the program and its arguments.

    logs: folder for logs. by_rank: each rank makes its own folder in it, `rank<r>`, for itself and its workers.
    profiles: folder that `recording` writes into. dated: the logs of ranks go into folders year/month/day.
    python: folder that every Python process of the job finds its modules in first.
    """
    lines = [
        "#!/bin/sh",
        "# Written by dxt-replay record: starts one process of the job under its tracer.",
        f"logs={shlex.quote(str(logs))}",
    ]
    if not by_rank:
        lines.append("rank=")
    else:
        rank = _first_of(("FLUX_TASK_RANK", "ALPS_APP_PE", *RANK_VARIABLES))
        lines += [f'rank="{rank}"', 'if [ -n "$rank" ]; then logs="$logs/rank$rank"; fi', 'command -p mkdir -p "$logs"']
    if by_rank and dated:
        days = " ".join(str(day) for day in range(DAYS_AHEAD))
        lines.append(
            f'for day in {days}; do command -p mkdir -p "$logs/$(command -p date -d "+$day days" +%Y/%-m/%-d)"; done'
        )
    if tracer.unset:
        lines.append(f"unset {' '.join(tracer.unset)}")
    lines += [f"export {name}={_with_logs(value)}" for name, value in tracer.variables.items()]
    lines.append(f"export {FOLDER_VARIABLE}={shlex.quote(str(profiles))}")
    if python is not None:
        lines.append(f'export {FOLDER_OF_REQUESTS}="$logs" {ROOT_VARIABLE}=$$')
        lines.append(f'export PYTHONPATH={shlex.quote(str(python))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    if tracer.preload:
        libraries = shlex.quote(":".join(map(str, tracer.preload)))
        lines.append(f'export LD_PRELOAD={libraries}"${{LD_PRELOAD:+:$LD_PRELOAD}}"')
    lines.append(f'exec {tracer.prefix} "$@"' if tracer.prefix else 'exec "$@"')
    return "\n".join(lines) + "\n"


def _first_of(variables: tuple[str, ...]) -> str:
    """Shell expression for the first variable that is set."""
    text = ""
    for variable in reversed(variables):
        text = f"${{{variable}:-{text}}}"
    return text


def _with_logs(value: str) -> str:
    """A value as a shell word in which LOGS and OF_RANK stay variables of the script."""
    parts = re.split(f"({re.escape(LOGS)}|{re.escape(OF_RANK)})", value)
    return "".join(f'"{part}"' if part in (LOGS, OF_RANK) else shlex.quote(part) for part in parts if part)
