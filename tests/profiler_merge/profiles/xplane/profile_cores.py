"""What tests of the profile readers share: each decoding core, a small profile, and all that a profile holds."""

import os
from pathlib import Path

import pytest

from profiler_merge.profiles.event_table import Profile
from profiler_merge.profiles.xplane.decode import core_name, read_profile
from tests import xplane_writer as writer
from tests.xplane_writer import Event, Line
from traces.errors import ProfileError

both_cores = pytest.mark.parametrize("core", ["compiled", "python"], indirect=True)


@pytest.fixture(name="core")
def core_fixture(request, monkeypatch):
    use_core(monkeypatch, request.param)
    return request.param


def use_core(monkeypatch, name):
    monkeypatch.setenv("DXT_REPLAY_CORE", name)
    if core_name() != name:
        assert os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1", "the compiled core is missing"
        pytest.skip("the compiled core is not built")


@pytest.fixture(name="write")
def write_fixture(tmp_path):
    def write(data: bytes, name: str = "node1.xplane.pb") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def fingerprint(profile: Profile) -> dict:
    """Everything a profile holds, in a form that `==` compares."""
    columns = {key: getattr(profile, key).tolist() for key in ("line", "name", "start_ns", "duration_ns")}
    fields = ("hostnames", "epoch_start_ns", "epoch_source", "options", "planes", "lines", "names", "display_names")
    fields += ("skipped_fields",)
    stats = {key: (rows.tolist(), values.tolist()) for key, (rows, values) in profile.stats.items()}
    return columns | {key: getattr(profile, key) for key in fields} | {"stats": stats, "texts": profile.texts}


def outcome(path: Path) -> dict | str:
    try:
        return fingerprint(read_profile(path))
    except ProfileError:
        return "error"


def small_profile() -> bytes:
    """Two threads, six kinds of stat, a name that is not UTF-8."""
    events = tuple(
        Event(
            name=f"op{i % 3}:MatMul",
            start_ns=1_000 * i,
            duration_ns=500,
            stats={"step_num": i, "id": (1 << 63) + i, "name": "ds", "filename": b"/x\xff", "cost": 0.5}
            if i % 2
            else {},
        )
        for i in range(6)
    )
    return writer.profile(
        [Line(id=-5, name="python", events=events), Line(id=7 << 40, name="tf_Compute/7", events=events)]
    )
