"""An object store: whether its endpoint takes, returns, lists and removes an object below the prefix of a target."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.replay.doctor.place import PROBE_BYTES
from dxt_replay.replay.objects.place import ObjectPlace, parse_object_url
from dxt_replay.replay.objects.requests import delete_object, keys_below, put_whole, read_range
from dxt_replay.replay.target.objects import REMEDIES
from dxt_replay.traces.errors import MissingDependencyError, UsageError
from dxt_replay.traces.units import format_bytes, format_duration


def object_part(url: str) -> Part:
    """The checks of an object target: one request of each kind that `stage` and `run` send, each once.

    Writes an object of 1 MiB below the prefix and deletes it. Raises: UsageError for a URL that is none.
    """
    place = parse_object_url(url)
    return Part(name=f"Object store {place.base}", checks=tuple(_checks(place)))


def _checks(place: ObjectPlace) -> Iterator[Check]:
    yield Check(name="endpoint", found=place.endpoint or "of the environment (AWS_ENDPOINT_URL, AWS_REGION)")
    try:
        client = place.client()
    except (MissingDependencyError, UsageError) as error:
        yield Check(name="client", found=str(error), state=State.FAILED)
        return
    yield from _requests(place, client)


def _requests(place: ObjectPlace, client: Any) -> Iterator[Check]:
    key = place.key(f"dxt-replay-doctor-{secrets.token_hex(8)}")
    requests: dict[str, Callable[[], object]] = {
        "PUT": lambda: put_whole(client, key, os.urandom(PROBE_BYTES)),
        "GET": lambda: read_range(client, key, 0, memoryview(bytearray(PROBE_BYTES))),
        "LIST": lambda: next(keys_below(client, place.prefix), None),
        "DELETE": lambda: delete_object(client, key),
    }
    for name, send in requests.items():
        begin = time.monotonic_ns()
        try:
            send()
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "nothing can be staged here: choose another target")
            if name == "DELETE":
                remedy = (
                    f"remove {place.base}{key.removeprefix(place.prefix)} yourself, which this check left; {remedy}"
                )
            found = f"fails: {error.strerror or error}"
            yield Check(name=name, found=found, state=State.FAILED, remedy=remedy)
            if name == "PUT":
                return
        else:
            took = format_duration(time.monotonic_ns() - begin)
            what = format_bytes(PROBE_BYTES) if name in ("PUT", "GET") else "answered"
            yield Check(name=name, found=f"{what} in {took}")
