"""The words of `dxt-replay simulate`, `transform`, `capacity` and `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.section import (
    UNSEEN,
    WARNINGS,
    Section,
    beside,
    figures,
    listing,
    of_generated,
    prose,
    recorded_training,
    table,
)
from dxt_replay.traces.units import format_bytes, format_counted, format_duration, format_signed

if TYPE_CHECKING:
    from dxt_replay.replay.calibration.calibration import Calibration
    from dxt_replay.replay.calibration.published import Published
    from dxt_replay.replay.capacity import Capacity
    from dxt_replay.replay.commands.predicting import Simulated
    from dxt_replay.replay.simulation.predict import Prediction
    from dxt_replay.replay.transform.rewrite import Transformed

# ------------------------------------------------------------------------------------------------------------ simulate

SHOWN_STEPS = 10
"""Steps that the terminal shows: those that wait longest."""

_USES = {
    "compute": "compute",
    "client": "the client's own time",
    "input_wait": "waiting for input",
    "meetings": "meeting the other ranks",
    "checkpoints": "checkpoints",
    "evaluation": "evaluation",
    "loading": "before the first step",
}
SIMULATED = figures("""
    capture | {capture} | the capture that was simulated
    storage | {storage.name} | name of the storage model
    whole run | {elapsed_s}; recorded {recorded_s} | from the first event to the end of the last
    ranks, nodes | {ranks}, {nodes} | ranks of the simulated job
    operations | {operations} | operations of one run
    bottleneck | {bottleneck} | the limit that holds the run up
    simulated | {runs} runs, {simulated.items} operations, waits and gaps | simulated runs
""")
SPENT = figures("""
    time of a training thread | {use}
    mean of the ranks | {spent_s}
    share | {share_pct}
""")
STEPS = figures("step | {step}" + "".join(f"\n{label} | {{{name}_ms}}" for name, label in _USES.items()))
RESOURCES = figures("""
    queue | {name}
    of each | {each}
    number | {instances}
    busy, mean | {busy_mean_pct}
    busiest one | {busy_max_pct}
    waited, all requests | {waited_s}
""")
OPERATIONS = figures("""
    operation | {operation}
    number | {operations}
    bytes | {bytes}
    mean time | {mean_us}
    requests to servers | {requests}
    their bytes | {request_bytes}
""")
SCALING = figures("""
    ranks | {ranks}
    whole run | {elapsed_s}
    on infinitely fast storage | {free_storage_s}
    storage limits by | {storage_limits_pct}
    accelerators used | {accelerator_utilisation_pct}
    bottleneck | {bottleneck}
""")


def simulation_sections(found: Simulated) -> list[Section]:
    shown, predicted, storage = found.as_json(), found.prediction, found.storage
    spent, total_s = shown["time_s"], sum(shown["time_s"].values()) or 1.0
    steps = [
        {f"{name}_ms": step.get(name) or None for name in _USES} | {"step": step["step"]} for step in shown["steps"]
    ]
    waited = ("input_wait_ms", "checkpoints_ms")
    longest = sorted(steps, key=lambda step: -sum(step[name] or 0.0 for name in waited))[:SHOWN_STEPS]
    hits = shown["requests"]["cache_hits"]
    cached = f"Reads that the page cache served alone: {hits:,}, {format_bytes(shown['requests']['cache_hit_bytes'])}."
    uses = [
        {"use": label, "spent_s": spent[name], "share_pct": 100 * spent[name] / total_s}
        for name, label in _USES.items()
        if spent.get(name)
    ]
    times = listing("Where the time goes", SPENT, uses, bar_of=lambda row: float(row["spent_s"]))
    most = sorted(uses, key=lambda row: -row["spent_s"])[:3]
    said = [*predicted.doubt.sentences, training_line(found), limit_sentence(predicted), *check_sentence(predicted)]
    sections = [
        prose("", said),
        table("Prediction", SIMULATED, shown, {"storage": ": ".join(filter(None, (storage.name, storage.about)))}),
        replace(times, brief=() if predicted.doubt.sentences else tuple(row["use"] for row in most)),
        listing("Steps that wait longest", STEPS, sorted(longest, key=lambda step: step["step"])),
        listing("How busy the storage is", RESOURCES, shown["resources"]),
        listing(
            "Operations",
            OPERATIONS,
            [{"operation": name, **each} for name, each in shown["requests"]["by_operation"].items()],
            notes=[cached] * bool(hits),
        ),
        listing(
            "Other numbers of ranks",
            SCALING,
            [{**each, "bottleneck": each["bottleneck"].partition(":")[0]} for each in shown["scaling"]],
            brief=True,
        ),
        prose(WARNINGS, found.warnings, brief=True),
    ]
    return of_generated(sections, found.generated)


def training_line(found: Simulated) -> str:
    """One line: the predicted and the recorded duration of the training."""
    predicted, wait_ns = found.prediction, found.recording_wait_ns
    rest_ns = found.recorded_training_ns - (wait_ns or 0)
    recorded = recorded_training(
        found.recorded_training_ns / 1e9,
        None if wait_ns is None else wait_ns / 1e9,
        predicted.training_ns / rest_ns if rest_ns else None,
    )
    low_ns, high_ns = predicted.training_interval_ns
    between = f" ({format_duration(low_ns)} to {format_duration(high_ns)})" if high_ns > low_ns else ""
    takes = f"{format_duration(predicted.training_ns)}{between}"
    return f"Training would take {takes} on {found.storage.name}; {recorded}."


def check_sentence(predicted: Prediction) -> list[str]:
    """One sentence that compares the replay of a part with its simulation; none if nothing was replayed."""
    check = predicted.checked
    if check is None:
        return []
    window = "All of it" if check.steps is None else "Steps {} to {}".format(*check.steps)
    compared = (
        f"{window} took {format_duration(check.measured_ns)} in a replay, {format_duration(check.simulated_ns)} in the "
        f"simulation ({format_signed(check.difference_pct, 1)} %)"
    )
    widened = "they agree" if check.verdict == "agrees" else "the interval is wider for that"
    return [f"Checked: {compared}; {widened}."]


def limit_sentence(predicted: Prediction) -> str:
    """One line: the share of the training that infinitely fast storage would save, and the accelerator utilisation."""
    whole_ns, free_ns, used = predicted.training_ns, predicted.free.training_ns, predicted.utilisation_pct
    pct = 100.0 * max(0, whole_ns - free_ns) / max(whole_ns, 1)
    utilised = "" if used is None else f" Accelerator utilisation: {used:.1f} %."
    return (
        f"This storage limits it by {pct:.1f} %: with infinitely fast storage it would take "
        f"{format_duration(min(free_ns, whole_ns))}.{utilised}"
    )


# ----------------------------------------------------------------------------------------------------------- transform

CHANGED = figures("""
    ranks | {ranks} | ranks
    operations | {operations} | operations of all ranks
    reads | {reads} | reads of all ranks
    bytes read | {bytes_read} | bytes read by all ranks
    elapsed | {elapsed_ns} | from the first event to the end of the last
""")


def transform_sections(transformed: Transformed) -> list[Section]:
    found, operations = transformed.as_json(), format_counted(transformed.after.operations, "operation")
    if transformed.same:
        done = "nothing changed, because the capture is already like this"
    elif set(transformed.changes) == {"ranks", "weak"}:
        done = f"{operations}, at the recorded times"
    else:
        done = f"{operations}; the causal model predicts its elapsed time"
    title = f"Wrote {transformed.path}: {done}"
    sections = [
        prose("", transformed.doubt.sentences),
        beside(title, CHANGED, {head: found[head] for head in ("before", "after")}),
        prose("Assumed", transformed.assumptions),
    ]
    return of_generated(sections, transformed.generated)


# ------------------------------------------------------------------------------------------------------------ capacity

SEARCH = figures("""
    tried up to | {most} ranks, each with files of its own | largest number of ranks to try
    on infinitely fast storage | {free_utilisation_pct} utilisation | utilisation without storage, simulated
    predicted | {simulated_ranks} ranks | result of the storage model
""")
LOADS = figures("""
    ranks | {load}
    AU | {utilisation_pct}
    result | {result}
    samples/s | {samples_rate}
    MB/s | {megabytes_rate}
    training | {training_s}
    ~latency p50 | {latency_us.p50}
    ~p99 | {latency_us.p99}
    ~processors | {processors_pct}
""")


def capacity_sections(found: Capacity) -> list[Section]:
    """The tables of `dxt-replay capacity`, with the units of MLPerf Storage's tool: AU, samples/s, 10^6 bytes/s."""
    shown = found.as_json()
    runs = sorted(shown["runs"], key=lambda run: (not run["storage"], run["ranks"]))
    predicted = [
        {"load": f"{each['ranks']}, simulated", "result": _passed(found, each), **each} for each in shown["simulated"]
    ]
    return [
        prose("", [*found.doubt.sentences, capacity_headline(found)]),
        listing(
            f"Loads: pass from {found.limit_pct:g} % accelerator utilisation (AU) on",
            LOADS,
            [*(_load(found, each) for each in runs), *predicted],
            brief=True,
        ),
        table("Search", SEARCH, shown),
        prose(WARNINGS, found.warnings, brief=True),
    ]


def _passed(found: Capacity, run: Mapping[str, Any]) -> str:
    return "pass" if run["utilisation_pct"] >= found.limit_pct else "fail"


def _load(found: Capacity, run: Mapping[str, Any]) -> dict[str, Any]:
    load = {**run, "load": f"{run['ranks']}{'' if run['storage'] else ', without I/O'}", "result": _passed(found, run)}
    if run["storage"]:
        samples = run.get("samples_per_s")
        load["samples_rate"] = None if samples is None else f"{samples:,.1f}"
        load["megabytes_rate"] = f"{run['mib_s'] * (1 << 20) / 1e6:,.1f}"
    return load if run["storage"] else {**load, "latency_us": None}


def capacity_headline(found: Capacity) -> str:
    limit, most = f"{found.limit_pct:g} %", found.most
    low, high = found.interval
    carried = f"{format_counted(low, 'rank')} at {limit} utilisation"
    if found.limited_by == "memory":
        return "Not known: files were in memory before a run, so the replays measured memory and not the storage."
    if found.limited_by == "nothing":
        return f"This storage carries at least {carried}: none of up to {most} ranks was too much. Try a larger --most."
    if found.limited_by == "machine":
        return (
            f"This storage carries at least {carried}. More could not be tried: the machine that replays does not keep "
            "up with more ranks. Replay on more processors or nodes."
        )
    if low == high:
        return f"This storage carries {carried}." if low else f"This storage does not carry a single rank at {limit}."
    return f"This storage carries {low} to {high} ranks at {limit} utilisation: runs of one load contradict each other."


# ----------------------------------------------------------------------------------------------------------- calibrate

CALIBRATION = figures("""
    target | {target} | the directory
    file system | {file_system} | type of its file system, such as ext4
    storage model | {output} | path of the storage model
    measured for | {seconds} s, {rounds} whole rounds | duration of the measurement
    data read cold | {data_bytes} | bytes of the file that was read cold
    left in the page cache after a drop | {resident_after_drop_pct} | share of that file
    read-ahead | {read_ahead_bytes} | largest window that the kernel fetched ahead of a sequential reader
    first byte of a small GET | {object_store.first_byte_us} | median time to the first byte
    first byte of a large GET | {object_store.first_byte_large_us} | median time to the first byte
    one connection | {object_store.connection_bytes_per_s} | bandwidth of one connection
    throttle
""")
CALLS = figures("""
    call | {call}
    size | {size_bytes:+}
    in flight | {in_flight}
    mean | {mean_us}
    interval of the mean | {between}
    median | {p50_us}
    95 % within | {p95_us}
    bandwidth | {rate_per_s}
    most, several in flight | {most_per_s}
""")


def calibration_sections(done: Calibration, output: str = "") -> list[Section]:
    """The tables of a calibration. `output`: the storage model that was written."""
    shown = done.as_json() | {"output": output}
    rates = [
        f"{each.size * each.per_s / 1e6:.3g} MB/s in reads of {format_bytes(each.size)}"
        for each in done.burst
        if each.throttled
    ]
    throttle = f"reads pass at a rate after a burst: {', '.join(rates)}" if done.model.limits else "none seen"
    sizes = {each.size for each in done.measured}
    most = {size: max(each.bytes_per_s for each in done.measured if each.size == size) for size in sizes}
    calls: list[dict[str, Any]] = [
        {
            "call": f"{each.call}, {each.state}" if each.state else each.call,
            "size_bytes": each.size,
            "in_flight": each.in_flight,
            "mean_us": each.time_ns / 1e3,
            "between": f"{format_duration(each.low_ns)} to {format_duration(each.high_ns)}",
            "p50_us": each.p50_ns / 1e3,
            "p95_us": each.p95_ns / 1e3,
            "rate_per_s": each.bytes_per_s or None,
        }
        for each in done.measured
    ]
    read, name = ("GET", "GETs") if done.model.objects else ("read, cold", "Cold reads")
    alone = [each for each in calls if each["call"] == read and each["in_flight"] == 1]
    several = [each for each in calls if each["call"] == read and each["in_flight"] != 1]
    others = [each for each in calls if each["call"] != read and each["in_flight"] == 1]
    alone = [{**each, "most_per_s": most[each["size_bytes"]]} for each in alone]
    cold = listing(f"{name}, one in flight", (CALLS[1], CALLS[3], CALLS[4], CALLS[6], CALLS[8]), alone)
    few = tuple(cold.rows[at][0] for at in sorted({0, len(alone) // 2, len(alone) - 1})) if alone else ()
    ahead = shown["read_ahead_bytes"]
    first = f"Wrote {output}: a storage model of {done.target}{f' ({done.file_system})' if done.file_system else ''}; "
    first += f"{'' if ahead is None else f'read-ahead {format_bytes(ahead)}; '}throttle: {throttle}."
    left_out = [f"{each.kind} of {format_bytes(each.size)}, {each.in_flight} in flight" for each in done.left_out]
    return [
        prose("", [first]),
        table("Calibration", CALIBRATION, shown, {"throttle": throttle}),
        replace(cold, brief=few),
        listing(f"{name}, several in flight", CALLS[1:8], several),
        listing("Other calls, one in flight", (*CALLS[:2], *CALLS[3:7]), others),
        prose("Left out: too slow for the time, or too large for the data", [", ".join(left_out)] * bool(left_out)),
        prose(UNSEEN, done.unseen, brief=True),
    ]


PUBLISHED = figures("""
    ranks | {ranks}
    runs | {runs}
    utilisation | {utilisation_pct}
    an epoch | {epoch_s}
    first step | {first_step_ms}
    later step | {later_step_ms}
    beyond its compute | {cost_ms}
    a reader's sample | {sample_ms}
    later steps read | {steady_bytes_per_s}
    the first step read | {first_bytes_per_s}
    storage | {storage}
""")
STORAGE = {True: "may limit", False: "does not limit", None: "not known"}


def published_sections(found: Published, output: str = "") -> list[Section]:
    """The tables of results that others published. `output`: the storage model that was written."""
    rows = [{**each, "storage": STORAGE[each["storage_limits"]]} for each in found.as_json()["by_ranks"]]
    best = max(found.by_ranks, key=lambda each: each.steady_bytes_per_s)
    rate = f"{max(best.steady_bytes_per_s, best.first_bytes_per_s or 0.0) / 1e9:.3g} GB/s"
    first = f"Wrote {output}: later steps of {found.workload} compute for {found.compute_ms:g} ms and last up to "
    first += f"{max(each.cost_ms for each in found.by_ranks):.3g} ms longer. The storage delivered {rate}"
    if any(each.storage_limits for each in found.by_ranks):
        first += ", to the readers of the first step as to later steps: a limit of the storage or of the readers."
    else:
        first += ". No limit of it shows: the model takes all time beyond compute for the client's own."
    left_out = [f"{place}: {why}" for place, why in found.left_out.items()]
    return [prose("", [first]), replace(listing("By ranks", PUBLISHED, rows), brief=True), prose("Left out", left_out)]


FIGURES = {
    "simulate": SIMULATED,
    "capacity": SEARCH,
    "calibrate": CALIBRATION,
    "transform": figures("\n".join(f"{each.label} | {{before.{each.keys[0]}}} | {each.meaning}" for each in CHANGED)),
}
"""Schema -> the figures of its object."""
