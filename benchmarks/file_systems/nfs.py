"""NFS over the loopback, all in user space: the server is NFS-Ganesha, the client a FUSE file system on libnfs.

So it works if the kernel has neither. The protocol is version 4.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slowed_storage import LASTING_NAMES, WITHIN_S, CannotThrottleError, fuse_mounted

SERVER = "ganesha.nfsd"

CONFIGURATION = """
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Graceless = true; Lease_Lifetime = 120; RecoveryBackend = fs; RecoveryRoot = "{state}"; }}
EXPORT {{
  Export_Id = 1; Path = "{folder}"; Pseudo = /exported; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
  Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""


@contextmanager
def shown_by_nfs(folder: Path) -> Iterator[tuple[Path, int]]:
    """Mount `folder` through NFS; yields the mount and the server's process. Raises: CannotThrottleError."""
    if shutil.which(SERVER) is None:
        raise CannotThrottleError(f"{SERVER} is not installed (package nfs-ganesha-vfs)")
    with tempfile.TemporaryDirectory(prefix="dxt-replay-nfs-") as own:
        port = _free_port()
        configuration = Path(own, "ganesha.conf")
        configuration.write_text(CONFIGURATION.format(port=port, state=own, folder=folder), encoding="utf-8")
        server = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "TERM",
                SERVER,
                "-F",
                "-f",
                configuration,
                "-L",
                f"{own}/log",
                "-p",
                f"{own}/pid",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_for(server, port)
            source = Path(__file__).with_name("nfs_files.c")
            url = f"nfs://127.0.0.1/exported?version=4&nfsport={port}"
            with fuse_mounted(source, ("fuse3", "libnfs"), url, ("-s", *LASTING_NAMES), {}) as mount:
                yield mount, server.pid
        finally:
            server.terminate()
            try:
                server.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + WITHIN_S
    while server.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise CannotThrottleError(f"{SERVER} does not start here")
