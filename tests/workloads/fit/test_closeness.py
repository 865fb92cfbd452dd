from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.workloads.fit.closeness import device_of
from dxt_replay.workloads.fit.observation import observe
from dxt_replay.workloads.generate.assumed_device import parse_device
from tests.capture_builder import Span, build_capture, read


@given(latency=st.integers(0, 10**10), per_byte_ns=st.sampled_from([0.0, 0.001, 0.7, 900.0]))
def test_the_device_of_any_reads_is_one_that_the_generator_takes(tmp_path_factory, latency, per_byte_ns):
    lengths = (512, 4096, 65536)
    begin, ops = 1000, []
    for length in lengths * 3:
        ops.append(read(0, length=length, start_ns=begin, end_ns=begin + latency + round(per_byte_ns * length) + 1))
        begin = ops[-1].end_ns + 10
    spans = [Span("step", 900, begin, name="train", thread=1, step=0), Span("input_wait", 950, begin - 5, thread=1)]
    device = parse_device(
        device_of(observe(build_capture(tmp_path_factory.mktemp("d"), ops=ops, files=["/a"], spans=spans)))
    )
    mean = sum(op.end_ns - op.start_ns for op in ops) / len(ops)
    assert device is not None
    assert sum(device.latency_ns + length / device.bytes_per_s * 1e9 for length in lengths) / 3 == pytest.approx(
        mean, rel=0.01, abs=100
    )
