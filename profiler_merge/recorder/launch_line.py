"""Finds the program of the ranks in the command line of an MPI launcher. Pure.

A tracer belongs only into the ranks: preloaded into mpiexec it would trace the launcher, or break it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dxt_replay.traces.errors import UsageError

PLACEHOLDER = "{}"
"""Placeholder that a user writes where the program of the ranks begins."""

_LAUNCHERS = {
    *("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.gforker", "orterun", "prterun", "prun"),
    *("srun", "aprun", "jsrun", "flux"),
}
_BEFORE = {"env", "timeout", "nice", "nohup", "numactl", "taskset", "stdbuf", "ionice", "setsid", "time", "setarch"}
"""Programs that may precede the launcher."""

_VALUES = {
    **dict.fromkeys(("-env", "-genv", "--mca", "-mca", "--gmca", "-gmca", "--pmixmca", "--prtemca", "--omca"), 2),
    **dict.fromkeys(
        ("-bootstrap", "-launcher", "-bootstrap-exec", "-launcher-exec", "-rmk", "--launch-agent", "-x"), 1
    ),
    **dict.fromkeys(("-p", "--partition", "-A", "--account", "-q", "--qos", "-J", "--job-name", "--reservation"), 1),
    **dict.fromkeys(("-host", "--host", "-hosts", "-H", "-w", "--nodelist", "-C", "--constraint", "-D", "--chdir"), 1),
}
"""Option -> number of the next words that are its value although each may name a program: partitions are called `test`,
bootstraps `ssh`. For other options the next word is the value unless it is an option or a program."""


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
    result, begin = words[: place + 1], place + 1
    while begin <= len(words):
        end = words.index(":", begin) if ":" in words[begin:] else len(words)
        program = _program(words[begin:end], is_program)
        if program is None:
            raise UsageError(
                f"the program of the ranks was not found in `{' '.join(words)}`: write {PLACEHOLDER} before it, as in "
                f"`dxt-replay record -- {' '.join(words[: place + 1])} ... {PLACEHOLDER} python train.py`"
            )
        result += [*words[begin : begin + program], *prefix, *words[begin + program : end + 1]]
        begin = end + 1
    return result


def _launcher(words: Sequence[str]) -> int | None:
    """Index of the last word of the launcher: the first of the command, or behind programs that only prepare it."""
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name == "flux":
            return place + 1 if words[place + 1 : place + 2] in (["run"], ["mini"]) else None
        if name in _LAUNCHERS:
            return place
        # The words before it are options and values of the program that precedes it, or another one of these.
        is_value = bool(place) and (word.startswith("-") or "=" in word or word[:1].isdigit())
        if name not in _BEFORE and not is_value:
            return None
    return None


def _program(words: Sequence[str], is_program: Callable[[str], bool]) -> int | None:
    """Index of the program: the first word that is neither an option nor an option's value."""
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return place + 1 if place + 1 < len(words) else None
        if not word.startswith("-"):
            return place if is_program(word) else None
        after = words[place + 1] if place + 1 < len(words) else "-"
        has_none = "=" in word or after.startswith("-") or is_program(after)
        place += 1 + _VALUES.get(word, 0 if has_none else 1)
    return None
