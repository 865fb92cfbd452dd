"""The two cores of the simulated storage agree to the last bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, PythonLanes
from dxt_replay.replay.engine import items
from dxt_replay.replay.engine.wait_counters import FIRST_RANK_COUNTER
from dxt_replay.replay.plan.plan_row import PLAN_ROW
from dxt_replay.replay.simulation import cached_files, model_numbers
from dxt_replay.replay.simulation.model_numbers import ModelNumbers
from dxt_replay.replay.simulation.simulated_storage import PythonStorage
from dxt_replay.replay.simulation.storage_model import (
    SCOPES,
    Jitter,
    Limit,
    PageCache,
    RequestTime,
    Servers,
)
from dxt_replay.traces.schema import APIS
from tests.replay.simulation.storage_cases import CACHE, DEVICE, FILES, KIB, MIB, model, operations


def times():
    return st.builds(
        lambda counts, sizes, seed: RequestTime(
            in_flight=tuple(sorted(counts)),
            sizes=tuple(sorted(sizes)),
            time_ns=tuple(
                map(tuple, np.random.default_rng(seed).integers(0, 10**6, (len(counts), len(sizes))).astype(float))
            ),
        ),
        st.sets(st.integers(1, 8), min_size=1, max_size=3),
        st.sets(st.integers(0, MIB), min_size=1, max_size=3),
        st.integers(0, 99),
    )


@st.composite
def models(draw):
    count = draw(st.integers(1, 4))
    stripes = draw(st.integers(1, count))
    limits = []
    for number, scope in enumerate(draw(st.lists(st.sampled_from(SCOPES), max_size=4))):
        of = {"server": ("read",), "metadata": ("open", "sync")}.get(scope, ("read", "write", "stat"))
        limits.append(
            Limit(
                name=str(number),
                each=scope,
                operations=of,
                per_s=draw(st.floats(1e3, 1e10)),
                counts_requests=draw(st.booleans()),
                burst=draw(st.sampled_from([0.0, 1.0, 1e5])),
                request_bytes=draw(st.sampled_from([0, 1000])),
                step_ns=draw(st.sampled_from([0.0, 2e4, 3e6])),
            )
        )
    cache = None
    if draw(st.booleans()):
        cache = PageCache(
            size=draw(st.sampled_from([4096, 100_000, 1 << 30])),
            hit=draw(times()),
            write=draw(st.none() | times()),
            read_ahead=draw(st.sampled_from([0, 4096, 20_000])),
            dirty=draw(st.sampled_from([0, 30_000])),
            largest_fetch=draw(st.sampled_from([0, 8192, 100_000])),
            dropped_at_open=draw(st.booleans()),
        )
    return model(
        operations={name: draw(times()) for name in ("read", "write", "open", "sync", "seek")},
        servers=Servers(
            count=count,
            slots=draw(st.integers(0, 3)),
            stripe_bytes=draw(st.sampled_from([1000, 65_536])) if stripes > 1 else 0,
            stripe_count=stripes,
        ),
        metadata=Servers(count=draw(st.integers(1, 2)), slots=draw(st.integers(0, 2))),
        limits=tuple(limits),
        cache=cache,
        ranks_per_node=draw(st.integers(0, 3)),
        jitter=draw(st.sampled_from([None, Jitter.lognormal(0.5)])),
    )


def _through_streams(rows, chosen):
    """The operations, all of them through C streams where `chosen`."""
    if chosen:
        rows["_api"] = APIS.index("STDIO")
    return rows


OPERATION = st.tuples(
    st.sampled_from(["read", "read", "read", "write", "open", "close", "stat", "sync", "seek", "rename"]),
    st.integers(0, 2),
    st.sampled_from([0, 100, 4096, 20_000, 65_536]),
    st.sampled_from([0, 1, 4096, 30_000]),
    st.sampled_from([0, 10, 100_000]),
)


def _assert_cores_agree(storage, lanes, seed, scale):
    """The times of the items of each lane, and all counts, are the same in both cores."""
    compiled = pytest.importorskip("dxt_replay.replay.simulation._simulated_storage")
    core = pytest.importorskip("dxt_replay.replay.causal._lane_events")
    numbers = ModelNumbers.of(storage, 3, FILES)
    found = []
    for runner, service in (
        (PythonLanes, PythonStorage(numbers, seed=seed, scale=scale)),
        (core.CompiledLanes, compiled.CompiledStorage(numbers, seed, scale)),
    ):
        placed = [
            EventLane(items=rows, times=LaneTimes.room(len(rows)), rank=number % 3, file_shift=number // 3)
            for number, rows in enumerate(lanes)
        ]
        assert runner(placed, service, None, FIRST_RANK_COUNTER).run()
        use = dataclasses.asdict(service.use)
        counted = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in use.items()}
        found.append(([lane.times.end_ns.tolist() for lane in placed], counted))
    assert found[0] == found[1]


@given(
    storage=models(), lanes=st.lists(st.lists(OPERATION, min_size=1, max_size=15), min_size=1, max_size=4),
    seed=st.integers(0, 5), scale=st.sampled_from([1.0, 1.3]), streams=st.booleans(),
)  # fmt: skip
def test_the_compiled_core_does_what_the_specification_does(storage, lanes, seed, scale, streams) -> None:
    _assert_cores_agree(storage, [_through_streams(operations(*each), streams) for each in lanes], seed, scale)


@pytest.mark.parametrize("span", [8, 30, 300])
@pytest.mark.parametrize("read_ahead", [20_000, 128 * KIB, MIB])
@pytest.mark.parametrize("size", [200_000, 1 << 30])
@pytest.mark.parametrize("more", [{}, {"largest_fetch": 28 * KIB}, {"dropped_at_open": True}])
def test_the_cores_read_ahead_alike(span, read_ahead, size, more) -> None:
    """Reads at random, some writes and opens of three ranks of a file, within so many pages: context, marks, pages
    that leave."""
    random = np.random.default_rng(span)
    lanes = [
        operations(
            *(
                (str(name), 0, int(page) * 4096, int(length), int(due))
                for name, page, length, due in zip(
                    random.choice(["read"] * 9 + ["write", "open"], 150),
                    random.integers(0, span, 150),
                    random.choice([1, 4096, 9000, 40_000], 150),
                    random.choice([0, 20_000], 150),
                    strict=True,
                )
            )
        )
        for _ in range(3)
    ]
    cache = dataclasses.replace(CACHE, size=size, read_ahead=read_ahead, **more)
    _assert_cores_agree(model(**DEVICE, cache=cache, ranks_per_node=2), lanes, 1, 1.0)


def test_the_compiled_core_knows_the_numbers() -> None:
    numbers = pytest.importorskip("dxt_replay.replay.simulation._simulated_storage").CONSTANTS
    assert numbers == {
        "HIT": model_numbers.HIT,
        "HELD_WRITE": model_numbers.HELD_WRITE,
        "PAGE_BYTES": cached_files.PAGE_BYTES,
        "LEAST_ENTRIES": cached_files.LEAST_ENTRIES,
        **{name: getattr(model_numbers, name) for name in ("SERVER", "NODE", "SYSTEM", "METADATA")},
        "STDIO": APIS.index("STDIO"),
        "STREAM_BYTES": model_numbers.STREAM_BYTES,
        "OPEN": items.OPEN,
        "CLOSE": items.CLOSE,
        "READ": items.READ_AT,
        "WRITE": items.WRITE_AT,
        "SYNC": items.SYNC,
        "SEEK": items.SEEK,
    }
    assert PLAN_ROW.itemsize == 40
