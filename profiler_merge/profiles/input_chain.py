"""Finds the batch fetch of a TensorFlow loop that first used the product of each input-pipeline event. Pure.

tf.data passes elements between its threads through buffers, and names each of them: `PrefetchProduce` and the later
`PrefetchConsume` of one element have the same `element_id`. So the events form a chain, for example

    a read in ParallelInterleaveProduce 7   -> ParallelInterleaveConsume 7 in ParallelMapProduce 9
    -> ParallelMapConsume 9 in PrefetchProduce 3 -> PrefetchConsume 3 in the batch fetch

A captured function (of `map`) runs on another thread under the same step `id` as the `FunctionRun` that started it.
"""

from __future__ import annotations

import re

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.span_parts import NOT_FETCHED, outermost
from dxt_replay.traces.measures.intervals import Intervals

_PRODUCE = re.compile(r"(?P<stage>\w+)Produce")
_CONSUME = re.compile(r"(?P<stage>\w+)Consume")
_STARTED, _RUNS = "FunctionRun", "ExecutorState::Process"
_MOST_STAGES = 64
"""Most buffers between a read and the loop; no pipeline has more."""


def fetched_ns(profile: Profile, made: np.ndarray, get_next: np.ndarray, waits: Intervals) -> np.ndarray:
    """int64 (n,): the end of the batch fetch that first used what each event of `made` produced, else NOT_FETCHED.

    made: rows of `profile` (n,), the outermost events of the pipeline's threads, ascending. get_next: rows in which the
    loop asks for a batch. waits: the batch fetches that these make up, on the profile's clock.
    """
    asked = outermost_on_lines(profile, get_next)
    contexts = np.sort(np.concatenate((made, asked)))
    fetched = np.full(len(contexts), NOT_FETCHED)
    roots = np.searchsorted(contexts, asked)
    place = np.searchsorted(waits.starts, profile.start_ns[asked], side="right") - 1
    inside = (place >= 0) & (profile.end_ns[asked] <= waits.ends[np.maximum(place, 0)])
    fetched[roots[inside]] = waits.ends[place[inside]]
    follows = _user(profile, contexts)
    known = follows >= 0
    for _ in range(_MOST_STAGES):
        before = fetched.copy()
        fetched[known] = np.maximum(fetched[known], fetched[follows[known]])
        if (fetched == before).all():
            break
    return fetched[np.searchsorted(contexts, made)]


def outermost_on_lines(profile: Profile, rows: np.ndarray) -> np.ndarray:
    """The `rows` (ascending) that no other one of their line contains, ascending."""
    if not len(rows):
        return rows
    bounds = np.flatnonzero(np.diff(profile.line[rows])) + 1
    groups = np.split(rows, bounds)
    return np.concatenate([outermost(profile.start_ns, profile.end_ns, group) for group in groups])


def _user(profile: Profile, contexts: np.ndarray) -> np.ndarray:
    """int64 (n,): the context that first used the product of each context; -1 if none is known."""
    found = np.full(len(contexts), -1)
    stages: dict[str, list[list[int]]] = {}
    for code, name in enumerate(profile.names):
        for kind, pattern in enumerate((_PRODUCE, _CONSUME)):
            if match := pattern.fullmatch(name):
                stages.setdefault(match["stage"], [[], []])[kind].append(code)
    ids = profile.stat_column("element_id", -1)
    pairs = [(np.isin(profile.name, produce), np.isin(profile.name, consume)) for produce, consume in stages.values()]
    links = [(ids, made & (ids >= 0), used & (ids >= 0)) for made, used in pairs]
    runs = profile.stat_column("id", 0)
    by_name = [profile.names_matching(re.escape(name))[profile.name] for name in (_RUNS, _STARTED)]
    links.append((runs, by_name[0] & (runs != 0), by_name[1] & (runs != 0)))
    for key, makes, uses in links:
        maker, user = np.flatnonzero(makes), np.flatnonzero(uses)
        if not len(maker) or not len(user):
            continue
        user = user[np.lexsort((profile.start_ns[user], key[user]))]
        first = user[np.append(True, key[user][1:] != key[user][:-1])]
        at = np.minimum(np.searchsorted(key[first], key[maker]), len(first) - 1)
        same = key[first][at] == key[maker]
        own, its_user = _context(profile, contexts, maker[same]), _context(profile, contexts, first[at[same]])
        linked = (own >= 0) & (its_user >= 0) & (own != its_user)
        own, its_user = own[linked], its_user[linked]
        # A function may run in several events, and an event may hold several products: the first user counts.
        order = np.argsort(profile.start_ns[contexts[its_user]], kind="stable")[::-1]
        found[own[order]] = its_user[order]
    return found


def _context(profile: Profile, contexts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The context (its index in `contexts`) that is or contains each event of `rows`; -1 for none."""
    if not len(contexts):
        return np.full(len(rows), -1)
    # Rows of a profile are sorted by line and start, the outer event first, so an event follows those that contain it.
    place = np.searchsorted(contexts, rows, side="right") - 1
    holder = contexts[np.maximum(place, 0)]
    holds = (
        (place >= 0) & (profile.line[holder] == profile.line[rows]) & (profile.end_ns[holder] >= profile.end_ns[rows])
    )
    return np.where(holds, place, -1)
