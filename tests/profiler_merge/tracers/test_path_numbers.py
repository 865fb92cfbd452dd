"""Which paths in a trace are files of the job: by what lies there, and never against an `include` of the user."""

from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.tracers.calls import NOT_KEPT, PathNumbers

DATA = [
    "/dev/shm/x/a.bin",
    "/dev/shm/sem.x/a.bin",
    "/dev/shm/torch_1_2_3/a.bin",
    "/dev/shm/torch_weights",
    "/data/model.pth",
    "/data/my-info/a.bin",
    "/data/dist-info/a.bin",
    "/opt/data/a",
    "/opt/data/shared/a.bin",
    "/var/tmp/a",
    "/library/a",
    "/devices/a",
]
NOT_DATA = [
    "/dev/null",
    "/dev/shm/sem.QpKmld",
    "/dev/shm/torch_22640_353182064_0",
    "/dev/shm/psm_21467a1f",
    "/proc/self/maps",
    "/opt/conda/lib/x.json",
    "/opt/conda/envs/a/share/x.json",
    "/usr/share/x",
    "/var/lib/x",
    "/data/env/lib/python3.11/site-packages/a.dat",
    "/data/torch-2.0.dist-info/RECORD",
    "/data/train.py",
    "/data/libtorch.so.2",
]
NO_FILES = ["pipe:[123]", "TCP:[10.0.0.1:1->10.0.0.2:2]", "anon_inode:[eventpoll]", "/memfd:x", "/anon_hugepage"]


@pytest.mark.parametrize("path", DATA)
def test_data_are_files_of_the_job(path: str) -> None:
    numbers = PathNumbers()
    assert numbers.number(path.encode()) == 0
    assert numbers.warnings() == []


@pytest.mark.parametrize("path", NOT_DATA)
def test_the_system_and_programs_are_not_unless_included(path: str) -> None:
    assert PathNumbers().number(path.encode()) == NOT_KEPT
    assert PathNumbers(include=[path]).number(path.encode()) == 0


@pytest.mark.parametrize("path", NO_FILES)
def test_what_is_no_file_cannot_be_included(path: str) -> None:
    assert PathNumbers(include=["*"]).number(path.encode()) == NOT_KEPT


def test_exclude_is_stronger_than_include() -> None:
    assert PathNumbers(exclude=["*.bin"], include=["/dev/shm/*"]).number(b"/dev/shm/a.bin") == NOT_KEPT
