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
