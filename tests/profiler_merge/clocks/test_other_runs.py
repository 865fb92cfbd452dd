"""A profile of another run is refused by the facts that contradict it, all in one error."""

import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.traces.errors import ProfileError
from tests import kineto_writer as kineto
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.places import CAPTURES
from tests.xplane_writer import START_NS, Event, Line, profile

START_S = START_NS // 10**9


def log_file(folder, *, start_s=START_S, host=b"node1", pid=500, nprocs=1):
    """A job of 10 s whose rank 0 reads and sets two anchors."""
    records = [
        DxtRecord(record_id=1, reads=[(0, 10, 1.0, 1.5)], hostname=host),
        DxtRecord(record_id=2, writes=[(64 * i, 64, 0.5 + i, 0.500002 + i) for i in range(2)], hostname=host),
    ]
    return write_dxt_log(
        folder / "job.darshan",
        records,
        names={1: b"/data/a.tfrecord", 2: b"/run/dxt-anchor.node1.%d.bin" % pid},
        job=JobSpec(nprocs=nprocs, start_s=start_s, start_ns=0, end_s=start_s + 10, end_ns=0),
    )


def profile_file(folder, *, pid=None, rank=0):
    """One step of a second, with anchors of a process where one is named."""
    stats = {"rank": rank, "pid": pid}
    events = [Event(name="train", start_ns=10**9, duration_ns=10**9, stats={"step_num": 0})]
    if pid is not None:
        events += [
            Event(name="dxt_anchor", start_ns=int((0.499 + i) * 1e9), duration_ns=5_000_000, stats={"i": i, **stats})
            for i in range(2)
        ]
    path = folder / "node1.xplane.pb"
    path.write_bytes(profile([Line(id=1, name="python", events=tuple(events))]))
    return path


HERE = {"pid": None}


@pytest.mark.parametrize(
    ("log", "given", "options", "said"),
    [
        ({}, {"pid": 777}, {}, ["its anchors are of process 777, those in the log of 500"]),
        ({"start_s": START_S - 5000}, HERE, {}, ["it was recorded from", "the job ran from"]),
        ({"host": b"node7"}, HERE, {}, ["of host node1, and the job ran on node7"]),
        (
            {"start_s": START_S - 5000, "host": b"node7"},
            {"pid": 777, "rank": 3},
            {},
            ["process 777", "of rank 3", "recorded from", "host node1"],
        ),
        ({}, {"pid": 500}, {}, None),
        ({"host": b"NODE1.cluster.org"}, HERE, {}, None),  # the full name of a host is the same
        ({"start_s": START_S - 5000}, HERE, {"align": "5000"}, None),  # the user's word on the clock is taken
    ],
)
def test_the_profile_of_another_run_is_refused(tmp_path, log, given, options, said):
    arguments = [log_file(tmp_path, **log)], [profile_file(tmp_path, **given)], tmp_path / "a.capture"
    if said is None:
        made = merge(*arguments, MergeOptions(**options))
        assert (made.info.clock[0].method == "anchors") == (given["pid"] == 500)
        return
    with pytest.raises(ProfileError, match="of another run") as caught:
        merge(*arguments, MergeOptions(**options))
    assert all(part in str(caught.value) for part in (str(arguments[1][0]), *said))


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside the checkout")
def test_the_profile_of_another_real_run(tmp_path):
    profiles = find_profiles(CAPTURES / "candle" / "profile")
    with pytest.raises(ProfileError, match=r"of another run: its anchors are of process \d+"):
        merge([CAPTURES / "imagenet" / "job.darshan"], profiles, tmp_path / "a.capture")


@pytest.mark.parametrize("name", ["worker_0", "rank_3", "worker0_step_12", "graph_capture_rank_0", "node1_PID"])
def test_a_pytorch_name_is_a_host_where_its_number_is_a_process_of_its_events(tmp_path, name):
    steps = [kineto.mark(number, 10**9 * number, 10**9 * number + 9 * 10**8) for number in range(1, 4)]
    path = tmp_path / f"{name.replace('PID', str(kineto.PID))}.1694128201545.pt.trace.json"
    kineto.write(path, steps, start_ns=START_NS)
    log = log_file(tmp_path, host=b"x3105c0s19b1n0")
    if "PID" in name:
        with pytest.raises(ProfileError, match="it is of host node1, and the job ran on x3105c0s19b1n0"):
            merge([log], [path], tmp_path / "a.capture")
    else:
        made = merge([log], [path], tmp_path / "a.capture", MergeOptions(align="wall"))
        assert made.info.sources[1].name == path.name
