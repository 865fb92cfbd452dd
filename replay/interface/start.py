"""Where the program `dxt-replay` begins: under a name of its own, so that it can name a package that is in the way."""

from __future__ import annotations

import signal
import sys

from .packages import ForeignPackageError, check_packages  # relative: `replay` may be another project's

JOINT_COMMANDS = {"run", "regress"}
"""Commands that several processes of an MPI job run together. Python's own answer to Ctrl-C, an exception, would end
one process and leave another for ever in the start of MPI, where no exception can be raised."""


def main() -> int:
    """The command line of this process; returns its exit status."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command in JOINT_COMMANDS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `replay.commands.processes` undoes it
    try:
        check_packages()
    except ForeignPackageError as error:
        sys.stderr.write(f"dxt-replay: error: {error}\n")
        return 2
    from replay.commands.main import main as run_command_line

    sys.meta_path.insert(0, _WithoutPandas)
    return run_command_line()


class _WithoutPandas:
    """pyarrow imports pandas at the first array wherever it is installed, 0.3 s that no command has a use for."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Called for every import. Raises: ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("the commands work without pandas", name=name)


if __name__ == "__main__":
    sys.exit(main())
