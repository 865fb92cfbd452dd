"""Storage made slow for a benchmark: throttled by a control group, or shown through FUSE calls that wait."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LIMITS = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
"""Limits of a device by their names in `io.max` (control groups of version 2), and their files in version 1."""

LASTING_NAMES = ("-o", "entry_timeout=86400,attr_timeout=86400")
"""Mount options of a FUSE file system whose names and attributes the kernel need not look up again."""

WITHIN_S = 10.0
"""Longest time in which a file system is mounted or the processes of a control group end."""


class CannotThrottleError(Exception):
    """The storage of this machine cannot be throttled."""


def run_command(*arguments: str, procs: Path | None = None, statuses: Collection[int] = (0,)) -> str:
    """What the command prints; `procs` and `statuses` as in `run_in`."""
    return run_in([sys.executable, "-m", "dxt_replay.replay.commands.main", *arguments], procs, statuses)


def run_in(command: Sequence[str], procs: Path | None, statuses: Collection[int] = (0,)) -> str:
    """Standard output of a command, which joins the control group of `procs` first.

    Raises: RuntimeError where it ends with a status that is not among `statuses`.
    """
    if procs is not None:
        command = ["sh", "-c", f'echo $$ > "{procs}" && exec "$@"', "sh", *command]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if done.returncode not in statuses:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def limited(limits: Mapping[str, Mapping[str, int]]) -> Iterator[Path]:
    """A control group with limits (names of LIMITS) per device (`major:minor`): the file that takes members' ids.

    Raises: CannotThrottleError.
    """
    older = [(LIMITS[name], f"{device} {rate}") for device, rates in limits.items() for name, rate in rates.items()]
    newer = [
        ("io.max", " ".join([device, *(f"{name}={rate}" for name, rate in rates.items())]))
        for device, rates in limits.items()
    ]
    for parent, lines in (("/sys/fs/cgroup/blkio", older), ("/sys/fs/cgroup", newer)):
        place = Path(parent, f"dxt-replay-{os.getpid()}")
        try:
            place.mkdir()
        except OSError:
            continue
        try:
            try:
                for name, line in lines:
                    (place / name).write_text(line, encoding="ascii")
            except OSError:
                continue
            yield place / "cgroup.procs"
            return
        finally:
            _remove_group(place)
    raise CannotThrottleError("no control group that limits block I/O can be made here (it needs root)")


def _remove_group(place: Path) -> None:
    """A group that still has a member that is about to end is busy."""
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            place.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def delayed(
    folder: Path, delay_us: int, calls: str = "all", pages: str = "kept", threads: int = 128, **rates: int
) -> Iterator[Path]:
    """`folder` through a file system of its own, each of whose calls takes `delay_us`.

    `rates`: `bytes` or `requests` that it serves in a second, of all calls together.
    `calls`: "all", "metadata" where reads, writes and syncs are not delayed, "files" where look-ups are not, or "reads"
    where only reads are. `threads`: how many calls it serves at the same time at the most.
    `pages`: "kept" after a close, or "dropped" at each open. The latter leaves names to libfuse's own timeouts, so that
    all of it is libfuse's default.
    Raises: CannotThrottleError.
    """
    source = Path(__file__).with_name("delayed_files.c")
    environment = {f"DXT_REPLAY_DELAYED_{name}": value for name, value in (("CALLS", calls), ("PAGES", pages))}
    environment |= {f"DXT_REPLAY_DELAYED_{name.upper()}": str(rate) for name, rate in rates.items()}
    environment["DXT_REPLAY_DELAYED_SOURCE"] = str(folder)
    serving = ("-s",) if threads == 1 else ("-o", f"max_threads={threads}")
    options = (*serving, *(LASTING_NAMES if pages == "kept" else ()))
    with tempfile.TemporaryDirectory(prefix="dxt-replay-fuse-") as own:
        program, mount = Path(own, source.stem), Path(own, "mount")
        mount.mkdir()
        try:
            asked = ["pkg-config", "--cflags", "--libs", "fuse3"]
            flags = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
            subprocess.run(["cc", "-O2", str(source), "-o", str(program), *flags], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            needed = f"{source.name} cannot be built (it needs cc, pkg-config and the headers of fuse3)"
            raise CannotThrottleError(needed) from error
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", str(program), str(delay_us), str(mount), "-f", *options],
            env=os.environ | environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so Ctrl-C ends what uses the file system first, then the file system
        )
        with suppress(OSError):  # the priority of a session is its own where the kernel groups processes by it
            priority = str(os.getpriority(os.PRIO_PROCESS, 0))
            Path(f"/proc/{process.pid}/autogroup").write_text(priority, encoding="ascii")
        try:
            until = time.monotonic() + WITHIN_S
            while not mount.is_mount():
                if process.poll() is not None or time.monotonic() > until:
                    raise CannotThrottleError(f"the FUSE file system {source.name} cannot be mounted here")
                time.sleep(0.01)
            yield mount
        finally:
            for command in (["fusermount3", "-u", str(mount)], ["umount", str(mount)], ["umount", "-l", str(mount)]):
                if mount.is_mount():
                    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
            process.terminate()
            process.wait()
