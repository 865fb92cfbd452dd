"""The file of a record, and the environment in it: what is written is read again, in every version; what is damaged,
foreign or newer is one clear error. The history of records: series, and change points with what changed beside them."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.regress.environment import (
    BlockDevice,
    TargetEnvironment,
    machine_changes,
    machine_environment,
    target_changes,
    target_environment,
)
from dxt_replay.replay.regress.history import change_points
from dxt_replay.replay.regress.record import MOST_BYTES, check_comparable, read_record
from dxt_replay.traces.errors import UsageError
from tests.replay.regress.builder import MACHINE, OPTIONS, TARGET, record, run


def test_what_is_written_is_read_again(tmp_path):
    made = record(runs=(run("candidate", 0, elapsed_s=3.0, overhead_pct=None), *record().runs))
    place = tmp_path / "a.json"
    place.write_bytes(made.encoded())
    found = read_record(place)
    assert (found, found.name) == (made, "a.json")
    assert [one.metrics["elapsed_s"] for one in found.counted_runs()] == [1.0, 1.01, 0.99]
    assert found.start_ns == 0
    both = (run("baseline", 1, elapsed_s=1.0), run("candidate", 1, elapsed_s=2.0))
    for other, counted in ((TARGET, 2), (replace(TARGET, target="/other"), 1)):  # 2: both sides are of one target
        assert len(record(runs=both, targets={"baseline": other, "candidate": TARGET}).counted_runs()) == counted


def test_a_record_of_version_1_is_read(tmp_path):
    document = json.loads(record().encoded()) | {"schema_version": 1}
    metric = {"ratio": 1.2, "low": 1.1, "high": None, "p_value": 0.01, "verdict": "regression"}
    document["result"]["metrics"] = {"io_time_s": metric}
    document["options"] |= {"vectored": 2, "reconstruct": False}
    del document["result"]["storage"], document["runs"][0]["stood_still_s"], document["runs"][0]["keeps_pages"]
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    found = read_record(tmp_path / "a.json")
    assert (found.schema_version, found.options.vectored, found.counted_runs()) == (1, 2, record().runs)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["format"], "something else", "is not a record of an experiment: give a file"),
        (["schema_version"], 3, "this release reads up to 2: update dxt-replay"),
        (["schema_version"], True, "is damaged: its schema_version"),
        (["runs"], [], "it has 0 runs instead of 1 to 10,000"),
        (["runs", 0, "metrics", "elapsed_s"], -1.0, "`float` >= 1e-15"),
        (["runs", 0, "metrics"], {"speed of light": 1.0}, "'?speed of light'? is not a metric"),
        (["runs", 0, "side"], "baseline", "run 1 is of the side 'baseline', which has no target"),
        (["runs", 1, "pair"], 1, "run 2 repeats pair 1 of the candidate"),
        (["runs", 1, "start_ns"], -5, r"`int` >= 0 .*start_ns"),
        (["runs", 1, "lag_us"], {"p50": 1.0}, "run 2: a percentile is missing"),
        (["runs", 1, "capture"], "/etc/passwd", "is damaged"),
        (["targets"], {}, "it has no candidate"),
        (["targets", "candidate", "options"], "rw", "Expected `array`"),
        (["primary"], "\x1b[2J", r"x1b\[2J' is not a metric"),
        (["result", "verdict"], "fine", "Invalid enum value"),
        (["result"], None, "it has no result"),
    ],
)
def test_what_is_wrong_is_one_clear_error(tmp_path, place, value, words):
    document = within = json.loads(record().encoded())
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as error:
        read_record(tmp_path / "a.json")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a record"),
        (b"[" * 100_000, "is not a record"),
        (b"\xff\xfe", "is not a record"),
        (b'{"format": "dxt-replay regress record", "runs": [', "is damaged"),
        (b'{"format": "dxt-replay regress record", "schema_version": 1}', "is damaged"),
        (b" " * (MOST_BYTES + 1), "has more than 64 MiB"),
    ],
    ids=range(6),  # not the 64 MiB
)
def test_other_files_are_refused(tmp_path, content, words):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_record(tmp_path / "a.json")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent", "a\0b"):
        with pytest.raises(UsageError, match=r"regular file|cannot read"):
            read_record(tmp_path / name)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (record(capture=replace(record().capture, digest="e" * 64)), "is other work with 100"),
        (record(options=replace(OPTIONS, cache="as found")), "with cache as found and these runs with cache cold"),
        (record(options=replace(OPTIONS, pace="none")), "with pace none and these runs with pace steps"),
        (record(runs=(run("candidate", 1, elapsed_s=1.0, stopped=True),)), "has no finished run"),
        (record([1.0] * 2001), "has more than 2,000 runs"),
    ],
)
def test_what_cannot_be_compared_is_refused(recorded, words):
    with pytest.raises(UsageError, match=words):
        check_comparable(recorded, record().capture, OPTIONS)
    check_comparable(record(), record().capture, OPTIONS)


# ----------------------------------------------------------------------------------------------------- the environment


def kernel(folder, files):
    """A directory with these files below `proc` and `sys`."""
    for name, content in files.items():
        place = folder / "kernel" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
    return folder / "kernel"


def test_the_nearest_mount_above_the_target_and_its_device_are_described(tmp_path):
    (tmp_path / "data set").mkdir()
    point, disk = str(tmp_path / "data set").replace(" ", r"\040"), "sys/devices/nvme0n1"
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n"
        f"30 22 259:5 / {point} rw,noatime - xfs /dev/nvme0n1p5 rw,logbufs=8\n"
        f"31 22 8:2 / {point}2 rw - ext3 /dev/sda2 rw\n"
        "a damaged line\n"
    )
    queue = {"scheduler": "none [kyber]", "rotational": "0", "nr_requests": "64", "read_ahead_kb": "128"}
    files = {"proc/self/mountinfo": mounts, "sys/class/bdi/259:5/read_ahead_kb": "512\n"}
    files |= {f"{disk}/queue/{name}": text for name, text in queue.items()}
    root = kernel(tmp_path, files | {f"{disk}/device/model": "Fast Disk  \n", f"{disk}/p5/partition": "5"})
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/259:5").symlink_to(root / disk / "p5")
    disk = BlockDevice(
        name="nvme0n1", model="Fast Disk", scheduler="kyber", rotational=False, read_ahead_kib=128, queue_requests=64
    )
    assert target_environment(tmp_path / "data set" / "twin", ("/a=/b",), root) == TargetEnvironment(
        target=str(tmp_path / "data set" / "twin"), maps=("/a=/b",), file_system="xfs",
        mount_point=str(tmp_path / "data set"), source="/dev/nvme0n1p5", options=("logbufs=8", "noatime", "rw"),
        read_ahead_kib=512, device=disk,
    )  # fmt: skip


def test_a_kernel_that_says_nothing_is_no_obstacle(tmp_path):
    assert target_environment(tmp_path, (), tmp_path / "nothing") == TargetEnvironment(target=str(tmp_path))
    found = machine_environment(3, tmp_path / "nothing")
    assert (found.processes, found.memory_bytes, found.limits, found.settings) == (3, 0, {}, {})
    assert {"dxt-replay", "python", "pyarrow"} <= found.versions.keys()
    assert machine_environment().memory_bytes > 0, "this one says something"
    assert target_environment(Path("/proc")).file_system == "proc"


LIMIT = "memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        ("0::/job/step\n", {"job/step/cpu.max": "max 1", "job/cpu.max": "15 10"}, {"cpu.max": "15 10"}),
        ("4:memory:/a\n3:blkio:/\n", {f"memory/a/{LIMIT}": f"{1 << 62}", f"memory/{LIMIT}": "64"}, {LIMIT: "64"}),
    ],
)
def test_the_nearest_limits_of_the_control_groups_are_found(tmp_path, group, files, limits):
    placed = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert machine_environment(1, kernel(tmp_path, {"proc/self/cgroup": group, **placed})).limits == limits


def test_changes_are_named():
    machine = replace(machine_environment(), kernel="6.1.0", memory_bytes=1 << 30, limits={}, versions={"numpy": "1"})
    later = replace(machine, kernel="6.8.0", memory_bytes=(1 << 30) + 4096, limits={"cpu.max": "1 2"}, versions={})
    assert machine_changes(machine, machine) == []
    changes = ["kernel 6.1.0 -> 6.8.0", "limit cpu.max none -> 1 2", "numpy 1 -> none"]
    assert sorted(machine_changes(machine, later)) == changes
    device = BlockDevice(name="sda", rotational=True)
    disk = TargetEnvironment(target="/t", file_system="ext4", options=("rw",), device=device)
    for changes, said in (
        ({"options": ("noatime", "rw")}, ["mount option noatime added"]),
        ({"file_system": "xfs", "options": ()}, ["file system ext4 -> xfs", "mount option rw removed"]),
        ({"device": None}, ["device sda -> none"]),
        ({"device": BlockDevice(name="sda", rotational=False)}, ["device is rotational yes -> no"]),
    ):
        assert target_changes(disk, replace(disk, **changes)) == said


# --------------------------------------------------------------------------------------------------------- the history

CHANGED = 5


def nights(count=8, factor=1.3, **changes):
    """Records of one a day, slower by `factor` from CHANGED on, when the kernel changed too."""
    rng = np.random.default_rng(4)
    made = []
    for day in range(count):
        level, kernel = (factor, "6.8.0") if day >= CHANGED else (1.0, "6.1.0")
        values = (level * rng.lognormal(0, 0.01, 8)).tolist()
        made.append(record(values, day=day, machine=replace(MACHINE, kernel=kernel), **changes))
    return made


def stored(folder, records):
    """The records as files whose names do not follow the time."""
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(records):
        (folder / f"{9 - number % 10}{number}.json").write_bytes(one.encoded())
    return folder


def test_the_change_is_found_with_what_changed_besides(tmp_path, capsys):
    place = stored(tmp_path, nights())
    (place / "notes.json").write_text("{}", encoding="utf-8")
    (place / "notes.txt").write_text("words", encoding="utf-8")
    found = dxt_replay.history(place).as_json()
    series = found["series"][0]
    (change,) = series["metrics"]["elapsed_s"]["changes"]
    assert (change["at"], change["verdict"], change["machine_changed"]) == (CHANGED, "regression", False)
    assert change["low"] < 1.3 < change["high"]
    assert series["records"][CHANGED]["differences"] == ["kernel 6.1.0 -> 6.8.0"]
    assert [one["start_ns"] for one in series["records"]] == sorted(one["start_ns"] for one in series["records"])
    assert found["skipped"] == ["notes.json"]

    assert main(["history", str(place)]) == 1, "the newest record holds it"
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("The elapsed time changed once in 8 records of run.capture: ", " % slower (",
                 "with 45.json: kernel 6.1.0 -> 6.8.0."):  # fmt: skip
        assert said in shown


LATE = {"p50": 0.1, "p90": 9000.0, "p99": 9000.0, "max": 9000.0}  # An idle thread wakes 9 ms late


@pytest.mark.parametrize(
    "other",
    [
        lambda one: replace(one, runs=tuple(replace(each, jitter_us=LATE) for each in one.runs)),
        lambda one: replace(one, machine=replace(one.machine, cpus=8)),
        lambda one: replace(one, machine=replace(one.machine, host="node2")),
    ],
    ids=["busier", "processors", "another machine"],
)
def test_a_change_with_the_machine_is_not_called_a_regression(tmp_path, capsys, other):
    place = stored(tmp_path, [other(one) if day >= CHANGED else one for day, one in enumerate(nights())])
    found = dxt_replay.history(place).as_json()
    assert "while the machine changed" in found["headline"]
    series = found["series"][0]
    assert [one["machine_changed"] for one in series["records"]] == [day == CHANGED for day in range(8)]
    assert [one["machine_changed"] for one in series["metrics"]["elapsed_s"]["changes"]] == [True]
    assert main(["history", str(place)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("regression" in shown, shown.lower().count("machine changed") >= 2) == (False, True)
    assert "Measure again on the machine as it was." in shown


@pytest.mark.parametrize("count", [1, 2, 8])
def test_without_a_change_none_is_found(tmp_path, count):
    place = stored(tmp_path, nights(count, factor=1.02))
    assert main(["history", str(place)]) == 0
    found = dxt_replay.history(place).as_json()
    assert found["series"][0]["metrics"]["elapsed_s"]["changes"] == []
    assert found["headline"].startswith("No change of the elapsed time in ")


def test_records_without_finished_runs_are_left_out_and_other_work_is_a_series_of_its_own(tmp_path):
    stored(tmp_path / "a", nights(3))
    stored(tmp_path / "b", nights(3, options=replace(OPTIONS, cache="as found")))
    stored(tmp_path / "c", nights(3, targets={"candidate": replace(TARGET, target="/other")}))
    found = dxt_replay.history(*(tmp_path / name for name in "abc")).as_json()
    assert [len(one["records"]) for one in found["series"]] == [3, 3, 3]
    stored(tmp_path, nights(3))
    for name, one in (("stopped", run("candidate", 1, elapsed_s=1.0, stopped=True)), ("empty", run("candidate", 1))):
        (tmp_path / f"{name}.json").write_bytes(record(runs=(one,)).encoded())
    found = dxt_replay.history(tmp_path, tmp_path / "stopped.json").as_json()
    assert (found["records"], sorted(found["skipped"])) == (3, ["empty.json", "stopped.json"])
    lone = dxt_replay.history(tmp_path / "stopped.json").as_json()
    assert (lone["records"], lone["series"]) == (0, [])
    (tmp_path / "damaged.json").write_bytes(record().encoded()[:-100])
    for place in (tmp_path, tmp_path / "damaged.json"):
        with pytest.raises(UsageError, match="is damaged"):
            dxt_replay.history(place)


MARGIN = math.log(1.05)
ALPHA = 0.05


def samples(rng, levels, noise, runs=10):
    return [rng.normal(level, noise, runs) for level in levels]


@pytest.mark.parametrize(("count", "noise"), [(3, 0.005), (3, 0.1), (8, 0.03), (30, 0.01)])
def test_no_more_false_alarms_than_promised(count, noise):
    """In the worst case that the promise allows: two stretches that are just one margin apart."""
    rng, trials, alarms = np.random.default_rng(count), 150, 0
    for _ in range(trials):
        levels = np.where(np.arange(count) < rng.integers(1, count), -MARGIN / 2, MARGIN / 2)
        alarms += bool(change_points(samples(rng, levels, noise), MARGIN, ALPHA))
    assert alarms / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize(
    ("steps", "count", "found"),
    [
        ({5: 0.2}, 10, [5]),
        ({9: 0.2}, 10, [9]),  # the latest record alone
        ({4: 0.2, 5: -0.2}, 10, [4, 5]),  # one bad day
        ({3: -0.3, 6: 0.5}, 10, [3, 6]),
        ({}, 10, []),
        ({300: 0.4, 301: -0.4, 700: 0.2}, 1000, [300, 301, 700]),
    ],
)
def test_changes_are_found_where_they_are(steps, count, found):
    levels = np.cumsum([steps.get(place, 0.0) for place in range(count)])
    series = samples(np.random.default_rng(3), levels, 0.02 if count == 10 else 0.03)
    assert [at for at, _ in change_points(series, MARGIN, ALPHA)] == found
    assert change_points([], MARGIN, ALPHA) == change_points([np.zeros(5)], MARGIN, ALPHA) == []
    few = [np.random.default_rng(2).normal(level, 0.01, size) for size, level in ((10, 0), (0, 0), (3, 0), (10, 0.5))]
    assert [at for at, _ in change_points(few, MARGIN, ALPHA)] == [3]
