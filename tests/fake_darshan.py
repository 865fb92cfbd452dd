"""A library that behaves as Darshan's runtime does from outside, for a machine without it: every Python process that is
started under it leaves a log where Darshan would, a copy of a prepared one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, posix_rows, write_dxt_log, write_log

SOURCE = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int written = 0;
const char *calls = "H5get_libversion";  /* as a Darshan with HDF5 modules */

void darshan_core_shutdown(int write_log) {
    const char *folder = getenv("SITE_LOGDIR"), *prepared = getenv("FAKE_DARSHAN_LOG");
    if (!folder) folder = getenv("SITE_SCRATCH");  /* as built --with-log-path-by-env=SITE_LOGDIR,SITE_SCRATCH */
    if (!folder) folder = getenv("DARSHAN_LOGPATH");
    if (!prepared) prepared = PREPARED;
    char name[64] = "", path[4096], buffer[65536];
    FILE *file = fopen("/proc/self/comm", "r");
    if (file) { if (!fgets(name, sizeof name, file)) name[0] = 0; fclose(file); }
    if (written++ || !write_log || !folder || !prepared || !getenv("DARSHAN_ENABLE_NONMPI")) return;
    if (strncmp(name, "python", 6)) return;
    snprintf(path, sizeof path, "%s/user_python_id%s-%d_1-1-1-1_1.darshan", folder, getenv("DXT_RECORDING_JOB"),
             getpid());
    int from = open(prepared, O_RDONLY), to = open(path, O_WRONLY | O_CREAT, 0600);
    for (ssize_t got; (got = read(from, buffer, sizeof buffer)) > 0;)
        if (write(to, buffer, got) < 0) break;
    close(from);
    close(to);
}

__attribute__((destructor)) static void end(void) { darshan_core_shutdown(1); }
"""


def build(folder: Path, prepared: Path | None = None) -> Path:
    """Compile the library; skips the test where there is no C compiler. `prepared`: the log that it copies, where the
    environment names none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stand-in of Darshan's library")
    source, library = folder / "fake.c", folder / "libdarshan.so"
    source.write_text(SOURCE, encoding="utf-8")
    copied = "0" if prepared is None else f'"{prepared}"'
    command = [compiler, "-shared", "-fPIC", f"-DPREPARED={copied}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def prepared_log(path: Path, *, counted: int = 2) -> Path:
    """A log with two traced reads of one file, of which `counted` are in the counters."""
    traced = [DxtRecord(record_id=7, reads=[(0, 100, 1.0, 1.5), (100, 100, 2.0, 2.5)])]
    more = [(100 * place, 100, 1.0 + place, 1.5 + place) for place in range(counted)]
    rows = posix_rows([DxtRecord(record_id=7, reads=more)])
    counters = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    return write_dxt_log(
        path, traced, names={7: b"/data/part"}, job=JobSpec(nprocs=1), extra_modules={"POSIX": counters}
    )


def log_without_dxt(path: Path) -> Path:
    """A log as a Darshan without DXT writes it."""
    rows = posix_rows([DxtRecord(record_id=7, reads=[(0, 100, 1.0, 1.5)])])
    counters = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    return write_log(path, names={7: b"/data/part"}, job=JobSpec(nprocs=1), modules={"POSIX": counters})
