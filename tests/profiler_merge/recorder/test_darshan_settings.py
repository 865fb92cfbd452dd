from __future__ import annotations

import re

import pytest

from dxt_replay.profiler_merge.recorder import darshan as settings

GIB = 1 << 30


@pytest.mark.parametrize(("free", "mib"), [(None, 64), (GIB, 32), (3 * GIB, 32), (4 * GIB, 64), (1000 * GIB, 64)])
def test_the_memory_of_a_trace_is_a_part_of_what_is_free(free: int | None, mib: int) -> None:
    assert settings.dxt_memory_mib(free) == mib


def test_the_file_gives_dxt_its_memory_and_the_region_room_for_it() -> None:
    lines = dict(line.split(" ", 1) for line in settings.config_text(128).splitlines() if not line.startswith("#"))
    text = settings.config_text(128)
    assert "MAX_RECORDS 131072 DXT_POSIX,DXT_MPIIO" in text
    assert int(lines["MODMEM"]) >= 128 * 8 // 40 + 46  # compressed segments, and 65,536 records of 728 bytes
    assert text.endswith("\n")


def patterns(text: str, key: str) -> list[str]:
    """The regular expressions of all lines with a key, divided as Darshan divides them."""
    lines = [line for line in text.splitlines() if line.startswith(f"{key} ")]
    return [pattern for line in lines for pattern in line.split()[1].split(",")]


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("/home/me/train.py", True),
        ("/home/me/__pycache__/a.cpython-311.pyc.140234", True),
        ("/home/me/lib/libtorch.so.2", True),
        ("/home/me/venv/lib/python3.11/site-packages/torch/x.json", True),
        ("/home/me/conda/lib/python3.11/encodings", True),
        ("/data/train/part-00000.tfrecord", False),
        ("/data/python/images.npy", False),
        ("/data/a.python", False),
    ],
)
def test_pythons_own_files_are_left_out_and_data_are_not(path: str, left_out: bool) -> None:
    found = patterns(settings.config_text(64), "NAME_EXCLUDE")
    assert any(re.search(pattern, path) for pattern in found) is left_out


def test_an_included_folder_is_matched_as_it_is_spelled() -> None:
    _, pattern = patterns(settings.config_text(64, ["/opt/my data, v1.0/(x)"]), "NAME_INCLUDE")
    assert re.search(pattern, "/opt/my data, v1.0/(x)/a")
    assert re.search(pattern, "/opt/my data, v1.0/(x)")
    assert not re.search(pattern, "/opt/my data, v1.0/(x)y")
    assert not re.search(pattern, "/opt/my data, v1.0/y/a")


def test_files_in_memory_are_always_recorded() -> None:
    (pattern,) = patterns(settings.config_text(64), "NAME_INCLUDE")
    assert re.search(pattern, "/dev/shm/x/a.bin")
    assert not re.search(pattern, "/dev/null")


@pytest.mark.parametrize("name", ["/usr/bin/uname", "sh", "bash", "/opt/cuda/bin/nvcc", "c++"])
def test_programs_that_do_not_train_are_left_out(name: str) -> None:
    (pattern,) = patterns(settings.config_text(64), "APP_EXCLUDE")
    assert re.search(pattern, name)
    assert not re.search(pattern, f"{name}-train")


def test_folders_that_darshan_leaves_out_are_known() -> None:
    assert settings.needs_include("/opt/data")
    assert settings.needs_include("/var/tmp/run")
    assert not settings.needs_include("/optional")
    assert not settings.needs_include("/")
