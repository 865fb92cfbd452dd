"""What tests of the profile readers share: each decoding core, a small profile, and all that a profile holds."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.xplane import Decoder, decode, read_profile
from dxt_replay.traces.errors import ProfileError
from tests import xplane_oracle
from tests import xplane_writer as writer
from tests.xplane_writer import Event, Line


@dataclass(frozen=True)
class Core:
    """A decoder under test: the compiled one, or the oracle that it must agree with."""

    name: str
    decoder: Decoder

    def read(self, path: Path) -> Profile:
        return read_profile(path, decoder=self.decoder)

    def outcome(self, path: Path) -> dict | str:
        try:
            return fingerprint(self.read(path))
        except ProfileError:
            return "error"


COMPILED = Core("compiled", decode)
ORACLE = Core("oracle", xplane_oracle.decode)
both_cores = pytest.mark.parametrize("core", [COMPILED, ORACLE], ids=lambda core: core.name)


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
    fields = ("hostnames", "epoch_start_ns", "planes", "lines", "names", "skipped_fields")
    stats = {key: (rows.tolist(), values.tolist()) for key, (rows, values) in profile.stats.items()}
    return columns | {key: getattr(profile, key) for key in fields} | {"stats": stats}


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
