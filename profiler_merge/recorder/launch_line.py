"""Finds the program of the ranks in the command line of an MPI launcher. Pure.

A tracer belongs only into the ranks: preloaded into mpiexec it would trace the launcher, or break it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dxt_replay.traces.errors import UsageError

PLACEHOLDER = "{}"
"""Placeholder that a user writes where the program of the ranks begins."""

LAUNCHERS = {
    "mpiexec": "mpi",
    "mpirun": "mpi",
    "mpiexec.hydra": "mpi",
    "mpiexec.gforker": "mpi",
    "orterun": "mpi",
    "prterun": "mpi",
    "prun": "mpi",
    "srun": "slurm",
    "aprun": "other",
    "jsrun": "other",
    "flux": "flux",
}
"""Known launchers -> the family of their options."""

_BEFORE = {"env", "timeout", "nice", "nohup", "numactl", "taskset", "stdbuf", "ionice", "setsid", "time", "setarch"}
"""Programs that may precede the launcher."""

_TWO_VALUES = {"-env", "-genv", "--mca", "-mca", "--gmca", "-gmca", "--pmixmca", "--prtemca", "--omca"}
"""Options that are followed by a name and a value."""


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_ONE_VALUE = {
    "mpi": _words(
        "-n -np --np -c --n -ppn --ppn -npernode --npernode -host --host -hosts -H -f -hostfile --hostfile",
        "-machinefile --machinefile -x -wdir --wdir -wd -bootstrap -launcher -bootstrap-exec -launcher-exec -rmk",
        "-map-by --map-by -bind-to --bind-to -rank-by --rank-by -prefix --prefix -iface -configfile -envlist -genvlist",
        "-outfile-pattern -errfile-pattern --output-filename -output-filename --rankfile -rf --tune --launch-agent",
    ),
    "slurm": _words(
        "-n --ntasks -N --nodes -c --cpus-per-task -p --partition -A --account -J --job-name -q --qos -C --constraint",
        "-w --nodelist -x --exclude -D --chdir -d --dependency -M --clusters --reservation -o --output -e --error -i",
        "--input -t --time -m --distribution --mpi --gpus -G --gres --mem -L --licenses --export --jobid",
    ),
    "other": _words("-n -N -d -j -cc -p -r -a -g -c -b"),
    "flux": _words("-n --ntasks -N --nodes -c --cores-per-task -g --gpus-per-task -o --setopt -q --queue -t"),
}
"""Common options that take the next word as their value, even if it names a program: partitions are called `test` too.

For other options the next word is the value unless it is an option or a program."""


def is_launched(command: Sequence[str]) -> bool:
    """Whether a command starts ranks through a launcher, or marks their program with the placeholder."""
    return PLACEHOLDER in command or _launcher(command) is not None


def with_prefix(command: Sequence[str], prefix: Sequence[str], is_program: Callable[[str], bool]) -> list[str]:
    """The command with `prefix` before the program of the ranks, or at its begin without a launcher.

    `is_program`: whether a word names a program. Sections of a command that `:` divides get the prefix each.
    Raises: UsageError when the program cannot be found in the launcher's line.
    """
    words = list(command)
    if PLACEHOLDER in words:
        return [part for word in words for part in (prefix if word == PLACEHOLDER else [word])]
    place = _launcher(words)
    if place is None:
        return [*prefix, *words]
    family = LAUNCHERS[_name(words[place])]
    begin = place + 1 + (family == "flux")
    result = words[:begin]
    for number, section in enumerate(_sections(words[begin:], family)):
        program = _program(section, family, is_program)
        if program is None:
            raise UsageError(
                f"the program of the ranks was not found in `{' '.join(words)}`: write {PLACEHOLDER} before it, as in "
                f"`dxt-replay record -- {words[place]} ... {PLACEHOLDER} python train.py`"
            )
        result += [*([":"] if number else []), *section[:program], *prefix, *section[program:]]
    return result


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _launcher(words: Sequence[str]) -> int | None:
    """Index of the launcher: the first word, or behind programs that only prepare the next one."""
    before = True
    for place, word in enumerate(words):
        name = _name(word)
        if name in LAUNCHERS:
            return place if name != "flux" or list(words[place + 1 : place + 2]) in (["run"], ["mini"]) else None
        before = before and (name in _BEFORE if place == 0 else True)
        if not before or (place and _is_command(word)):
            return None
    return None


def _is_command(word: str) -> bool:
    """Whether a word behind `timeout` and the like is the program instead of their option or value."""
    name = _name(word)
    return name not in _BEFORE and not word.startswith("-") and "=" not in word and not word[:1].isdigit()


def _sections(words: Sequence[str], family: str) -> list[list[str]]:
    """The words between the `:` of mpiexec; all of them for other launchers."""
    sections: list[list[str]] = [[]]
    for word in words:
        if word == ":" and family == "mpi":
            sections.append([])
        else:
            sections[-1].append(word)
    return sections


def _program(words: Sequence[str], family: str, is_program: Callable[[str], bool]) -> int | None:
    """Index of the program: the first word that is neither an option nor an option's value."""
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return place + 1 if place + 1 < len(words) else None
        if not word.startswith("-"):
            return place if is_program(word) else None
        if word in _TWO_VALUES:
            place += 3
        elif word in _ONE_VALUE[family]:
            place += 2
        else:
            after = words[place + 1] if place + 1 < len(words) else "-"
            place += 1 if "=" in word or after.startswith("-") or is_program(after) else 2
    return None
