"""The short form of `make fuzz`: everything that once found a defect, and a few inputs with fixed seeds."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.__main__ import MEMORY, in_child, place_sound_inputs
from tests.fuzz.campaign import Campaign
from tests.fuzz.mutations import Files
from tests.fuzz.seeds import CORPUS, SOUND, files_in, seeds
from tests.fuzz.targets import TARGETS, Target

INPUTS = 20
"""Of each reader, after its seeds as they are."""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        place_sound_inputs(Path(folder))
        yield Path(folder)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_is_read_or_refused(scratch: Path, name: str) -> None:
    pool = in_child(lambda: seeds(name))
    campaign = Campaign(TARGETS[name], pool, scratch)
    campaign.run(len(pool) + INPUTS)
    assert list(campaign.findings) == []
    assert campaign.counts["accepted"]
    assert campaign.counts["inputs"] == len(pool) + INPUTS


@pytest.mark.parametrize("case", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_found_a_defect_once(scratch: Path, case: Path) -> None:
    campaign = Campaign(TARGETS[case.parent.name], [files_in(case)], scratch)
    campaign.try_all()
    assert list(campaign.findings) == []


def _broken(folder: Path) -> int:
    text = next(folder.iterdir()).read_bytes()
    if b"crash" in text:
        return text.index(b"not there")
    if b"memory" in text:
        return len(bytearray(3 << 30))
    if b"kill" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(text)


def test_what_is_found(tmp_path: Path) -> None:
    """Whatever ends a child, the inputs after it are tried too."""
    pool: list[Files] = [{"a.txt": text} for text in (b"crash", b"kill", b"fine", b"memory", b"fine")]
    campaign = Campaign(Target(name="broken", read=_broken, commands=()), pool, tmp_path)
    campaign.try_all()
    assert [what.split(":")[0].split(" |")[0] for what in campaign.findings] == [
        *("ValueError", "ended by signal 9", "MemoryError")
    ]
    assert campaign.counts == {"inputs": 5, "accepted": 2, "found": 3, "sealed": 0, "commands": 0}


def test_an_answer_that_a_checksum_should_have_kept(tmp_path: Path) -> None:
    """A reader that takes damage for data is found, since the byte lies under gzip's checksum."""
    target = Target(name="careless", read=lambda folder: (folder / "a.gz").read_bytes(), commands=())
    campaign = Campaign(target, [{"a.gz": bytes(range(200))}], tmp_path)
    campaign.run(60)
    assert any("a checksum covers" in what for what in campaign.findings)
    # A changed bit may make the data look cut off, so that the checksum is never reached: the warning says so.
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.strace.gz").write_bytes((SOUND / "strace/1/a.strace.gz").read_bytes()[:-9])
    assert TARGETS["strace"].warned(TARGETS["strace"].read(tmp_path / "t"))
