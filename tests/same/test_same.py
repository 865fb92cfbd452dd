"""The short form of `make same`: some of its jobs, and that it notices and says what differs."""

import copy

import pytest

from tests.same.__main__ import LEFT_OUT, differences, read_frozen
from tests.same.answers import answers_of, missing


@pytest.mark.parametrize("job", ["imagenet", "mpiio", "strace"])
def test_recorded_jobs_have_the_frozen_answers(job):
    if why := missing(job):
        pytest.skip(why)
    frozen = read_frozen()
    assert not differences(frozen, {job: answers_of(job, "*", frozen[LEFT_OUT])}, "*")


def test_a_difference_is_said_by_job_command_and_key():
    frozen = read_frozen()
    found = copy.deepcopy({"imagenet": frozen["imagenet"]})
    found["imagenet"]["merge"]["ops"]["rank 1"]["offset"] = "another"
    found["imagenet"]["merge"]["said"]["clock"][0]["offset_ns"] += 1
    del found["imagenet"]["verify"]
    said = differences(frozen, found, "*")
    assert [line.split(":")[0] for line in said] == [
        "imagenet / merge / said.clock[0].offset_ns",
        "imagenet / merge / ops.rank 1.offset",
        "imagenet / verify / answer",
    ]
    assert said[0].endswith(": -4434001 -> -4434000")
