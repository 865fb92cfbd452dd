"""Where the program `dxt-replay` begins: under a name of its own, so that it can name a package that is in the way."""

from __future__ import annotations

import sys

from .packages import ForeignPackageError, check_packages  # relative: `replay` may be another project's


def main() -> int:
    """The command line of this process; returns its exit status."""
    try:
        check_packages()
    except ForeignPackageError as error:
        sys.stderr.write(f"dxt-replay: error: {error}\n")
        return 2
    from replay.commands.main import main as run_command_line

    return run_command_line()


if __name__ == "__main__":
    sys.exit(main())
