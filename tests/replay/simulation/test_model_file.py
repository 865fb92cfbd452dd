"""Storage models in YAML and JSON: every form of a quantity, every error, and that a model survives being written."""

from __future__ import annotations

import json

import pytest
import yaml

from dxt_replay.replay.simulation import model as models
from dxt_replay.replay.simulation.model import RequestTime, StorageModel, document_of, model_of, read_storage_model
from dxt_replay.traces.errors import UsageError


def model(**keys):
    return model_of({"storage_model": 1, "name": "x", **keys})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("100us", RequestTime(time_ns=((100_000.0,),))),
        (0, RequestTime()),
        ({"latency": "1 ms", "bandwidth": "1MiB/s"}, RequestTime(sizes=(0, 1 << 20), time_ns=((1e6, 1e6 + 1e9),))),
        ({"1MiB": "2ms", "4KiB": "1ms"}, RequestTime(sizes=(4096, 1 << 20), time_ns=((1e6, 2e6),))),
        (
            {8: {"4kB": "1.5ms"}, 1: {"4kB": "900us"}},
            RequestTime(in_flight=(1, 8), sizes=(4000,), time_ns=((900_000.0,), (1_500_000.0,))),
        ),
    ],
)
def test_forms_of_a_time(value, expected):
    assert model(operations={"read": value}).operations["read"] == expected


EVERY_KEY = """
storage_model: 1
name: x
about: y
uncertainty: 12.5 %
ranks_per_node: 4
servers: {count: 8, slots: 16, stripe_size: 1MiB, stripe_count: 4}
metadata: {count: 2, slots: 3}
limits:
- {name: link, each: node, rate: 1.5GB/s, burst: 1MiB}
- {each: server, of: [read], rate: 1000/s, burst: 10, request_size: 128KiB, step: 100ms}
cache:
  {size: 1GiB, hit: 1us, write: 2us, read_ahead: 128KiB, dirty: 16MiB, largest_fetch: 1MiB, dropped_at_open: true}
jitter: {quantiles: [0.5, 1, 1.5], seed: 7}
client: {step: 4ms, meeting: {1: 0, 8: 6ms}, sample: {latency: 2ms, bandwidth: 100MB/s}, processors: 3}
"""


def test_all_keys(tmp_path):
    (tmp_path / "model.yaml").write_text(EVERY_KEY)
    assert read_storage_model(tmp_path / "model.yaml") == StorageModel(
        name="x",
        about="y",
        uncertainty=0.125,
        ranks_per_node=4,
        servers=models.Servers(count=8, slots=16, stripe_bytes=1 << 20, stripe_count=4),
        metadata=models.Servers(count=2, slots=3),
        limits=(
            models.Limit(name="link", each="node", per_s=1.5e9, burst=1 << 20),
            models.Limit(
                name="read 1000/s of each server", each="server", operations=("read",), per_s=1000.0,
                counts_requests=True, burst=10.0, request_bytes=128 << 10, step_ns=1e8,
            ),
        ),
        cache=models.PageCache(
            size=1 << 30, hit=RequestTime.affine(1000), write=RequestTime.affine(2000), read_ahead=128 << 10,
            dirty=16 << 20, largest_fetch=1 << 20, dropped_at_open=True,
        ),
        jitter=models.Jitter(quantiles=(0.5, 1.0, 1.5), seed=7),
        client=models.Client(
            step_ns=4e6, meeting_ns={1: 0.0, 8: 6e6}, sample=RequestTime.affine(2e6, 1e8), processors=3
        ),
    )  # fmt: skip


@pytest.mark.parametrize("source", [*models.shipped_names(), EVERY_KEY])
def test_models_survive_being_written(source):
    found = model_of(yaml.safe_load(source)) if source == EVERY_KEY else read_storage_model(source)
    document = document_of(found)
    for again in (document, yaml.safe_load(yaml.safe_dump(document)), json.loads(json.dumps(document))):
        assert model_of(again) == found


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"storage_model": 2}, "storage_model 2: this release reads version 1"),
        ({"bandwith": 1}, "unknown key 'bandwith': choose name, "),
        ({"operations": {"raed": "1us"}}, "operation 'raed': choose open"),
        ({"operations": {"read": 5}}, "operations.read: 5 is not a number with a unit: write one of ns, us"),
        ({"operations": {"read": {"1MiB": "1us", 8: {}}}}, "operations.read mixes"),
        ({"operations": {"read": {1: {"1B": "1us"}, 2: {"2B": "1us"}}}}, "operations.read: each number of requests"),
        ({"operations": {"read": {}}}, "operations.read has no times"),
        ({"operations": {"read": {"latency": "1us", "bandwidth": "1GB"}}}, "operations.read.bandwidth: '1GB'"),
        ({"operations": {"read": {"latency": "1us", "bandwidth": "0GB/s"}}}, "operations.read.bandwidth.*above 0"),
        ({"servers": {"count": 0}}, "servers: servers need a count of 1"),
        ({"servers": {"count": 2, "stripe_count": 3, "stripe_size": "1MiB"}}, "stripe_count 3 is not"),
        ({"servers": {"count": 2, "stripe_count": 2}}, "needs a stripe_size"),
        ({"limits": {}}, "limits: Expected `array`"),
        ({"limits": [{"each": "rack", "rate": "1/s"}]}, r"limits\[0\]: each 'rack': choose server, node"),
        ({"limits": [{"each": "node", "rate": "0/s"}]}, r"limits\[0\]: .*rate above 0"),
        ({"limits": [{"each": "node", "rate": "fast"}]}, r"limits\[0\].rate: 'fast' is not a number with a unit"),
        ({"limits": [{"each": "server", "rate": "1/s", "of": ["open"]}]}, "choose read, write"),
        ({"limits": [{"each": "node", "rate": "1/s", "color": 1}]}, r"unknown key 'color' of limits\[0\]"),
        ({"operations": {"read": {"latency": 0, "bandwith": "1B/s"}}}, "'bandwith' of operations.read: choose latency"),
        ({"limits": [{"each": "node", "rate": "1/s"}] * 2}, "two limits have the same name"),
        ({"cache": {"size": 0}}, "cache: a cache needs a size above 0"),
        ({"jitter": {}}, "jitter needs either spread or quantiles"),
        ({"jitter": {"quantiles": [2, 1]}}, "ascending order"),
        ({"uncertainty": "200 %"}, "uncertainty 2.0 is not a share"),
        ({"ranks_per_node": -1}, "ranks_per_node: Expected `int` >= 0"),
        ({"name": 3}, "name: Expected `str`"),
        ({"cache": {"size": "1e400 MiB"}}, "cache.size: '1e400 MiB' is too large"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(keys, message):
    with pytest.raises(UsageError, match=message):
        model(**keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "neither YAML nor JSON"),
        ("name: 2001-99-99", "neither YAML nor JSON"),
        ("storage_model: 1", "missing required field `name`"),
        ("!!python/object/apply:os.system ['true']", "neither YAML nor JSON"),
    ],
)
def test_errors_name_the_file(text, message, tmp_path):
    (tmp_path / "model.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=f"model.yaml.*{message}"):
        read_storage_model(tmp_path / "model.yaml")
