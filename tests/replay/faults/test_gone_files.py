"""Files of the twin that are removed under a run: open ones are used on, those opened afterwards fail by their name."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.replay.faults.injection import Commands, Ended, Rule
from tests.replay.faults.test_failing_calls import BOTH, TWIN
from tests.replay.faults.test_hanging_calls import run
from tests.replay.hdf5.test_replay import captured_application


@BOTH
@pytest.mark.parametrize("rule", [
    Rule(call="read", action="gone", path=f"{TWIN}data/a.bin", skip=3, count=1),
    Rule(call="write", action="gone", path=f"{TWIN}out/1.bin", skip=3, count=1),
], ids=["read", "written"])  # fmt: skip
def test_a_file_that_is_open_is_used_to_the_end(commands: Commands, folder: Path, rule: Rule, api: str) -> None:
    ended = commands.run(run(folder, "--json", "--api", api), rule)
    assert not list((folder / "twin").rglob(Path(rule.path).name))
    document = ended.json()
    assert (ended.status, document["failed"], document["short"]) == (0, 0, 0)


@BOTH
def test_one_that_is_gone_before_it_is_opened_is_named(commands: Commands, folder: Path, api: str) -> None:
    rule = Rule(call="open", action="gone", path=f"{TWIN}data/b.bin", count=1)
    _check_named(commands.run(run(folder, "--json", "--api", api), rule), "/data/b.bin")


def _check_named(ended: Ended, file: str) -> None:
    document = ended.json()
    assert ended.status == 1
    assert document["failed"] > 0
    assert document["errors"] == {"ENOENT": document["failed"]}
    assert {(each["file"], each["errno"], each["moved"]) for each in document["failures"]} == {(file, "ENOENT", 0)}


@pytest.mark.parametrize(("call", "skip"), [("read", 40), ("open", 0)])
def test_an_hdf5_file(commands: Commands, tmp_path: Path, call: str, skip: int) -> None:
    source = tmp_path / "source.h5"
    with h5py.File(source, "w") as file:
        values = np.random.default_rng(1).integers(0, 1 << 60, (64, 512))
        file.create_dataset("x", data=values, chunks=(1, 512), compression="gzip")
    captured_application(tmp_path, source, [("x", slice(row, row + 1)) for row in range(64)]).path.rename(
        tmp_path / "source.capture"
    )
    (tmp_path / "twin").mkdir(exist_ok=True)
    stage = ["stage", tmp_path / "source.capture", "--target", tmp_path / "twin"]
    assert commands.run(stage).status == 0
    words = [*run(tmp_path, "--json", "--api", "hdf5", "--pace", "none")]
    ended = commands.run(words, Rule(call=call, action="gone", path="/twin/", skip=skip, count=1))
    assert not list((tmp_path / "twin").rglob("*.h5"))
    assert ended.json()["backends"] == ["hdf5"]
    if call == "open":
        _check_named(ended, str(source))
    else:
        assert (ended.status, ended.json()["failed"], ended.json()["short"]) == (0, 0, 0)
