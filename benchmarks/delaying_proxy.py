"""A proxy that makes a fast object store slow: it delays the first byte of each answer, and paces each connection.

    python -m benchmarks.delaying_proxy --upstream http://127.0.0.1:PORT --first-byte-ms 20 --mb-per-s 20 [--port P]

It prints its URL and runs until Ctrl-C. `delaying` is the same for a program. delaying_proxy.c says what it does; it
is built with `cc` when it starts. The store's own time counts towards the delay. 1 MB is 1,000,000 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def delaying(upstream: str, first_byte_ms: float, mb_per_s: float = 0.0, port: int = 0) -> Iterator[str]:
    """The URL of a proxy before `upstream`, an http URL on this machine. Without `port` it listens on a free one.

    `mb_per_s`: of the body of each request and answer, per connection; 0 is no limit.
    Raises: RuntimeError without a C compiler, and where the proxy does not start.
    """
    compiler, place = shutil.which("cc") or shutil.which("gcc"), urlsplit(upstream)
    if compiler is None:
        raise RuntimeError("the delaying proxy needs cc on PATH")
    if place.scheme != "http" or place.hostname not in ("127.0.0.1", "localhost") or place.port is None:
        raise RuntimeError(f"{upstream}: expected http://127.0.0.1:PORT")
    with tempfile.TemporaryDirectory(prefix="dxt-replay-proxy-") as name:
        program = Path(name, "delaying_proxy")
        source = Path(__file__).with_suffix(".c")
        subprocess.run([compiler, "-O2", "-pthread", "-o", str(program), str(source)], check=True)
        numbers = (port, place.port, round(first_byte_ms * 1e6), round(mb_per_s * 1e6))
        with subprocess.Popen([str(program), *map(str, numbers)], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if not (listens := process.stdout.readline().strip()):
                    raise RuntimeError(f"the delaying proxy ended with {process.wait()}")
                yield f"http://127.0.0.1:{listens}"
            finally:
                process.terminate()


def main(arguments: Sequence[str] | None = None) -> None:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delaying_proxy", description=description)
    parser.add_argument("--upstream", required=True, help="URL of the store, http://127.0.0.1:PORT")
    parser.add_argument(
        "--first-byte-ms", type=float, default=20.0, help="time to the first byte (default: %(default)s)"
    )
    parser.add_argument(
        "--mb-per-s", type=float, default=20.0, help="per connection; 0: no limit (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    chosen = parser.parse_args(arguments)
    with (
        contextlib.suppress(KeyboardInterrupt),
        delaying(chosen.upstream, chosen.first_byte_ms, chosen.mb_per_s, chosen.port) as url,
    ):
        print(url, flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
