"""Explains the words of the output and the options, for the page and the site."""

from __future__ import annotations

from dxt_replay.traces.paces import Pace

DURATIONS = {
    "job": "From the start of the program to its end, by its recorder (`job.run_time_s`).",
    "run": "From the first event of a capture to the end of the last (`elapsed_s`, `recorded_s`). For a replay at the "
    "recorded times, `compare` ends with the begin of the last read or write: its duration belongs to the storage.",
    "training": "From the begin of the first step to the end of the last, without waits that the recording made "
    "(`storage_limit.elapsed_s`, `training_s`). All sentences on storage, and predictions, speak of it.",
    "steady loop": "The training without the excess of its first step and without evaluations, mean of the ranks "
    "(`loop.loop_s`). The input wait and what a finding has at stake are shares of it.",
    "step": "One iteration of the training loop, as the profile or a mark shows it (`steps.mean_s`).",
    "I/O time": "Of a rank, in reads and writes. Overlaps once: the time in which at least one was in flight. All "
    "added: the sum of their durations.",
}
"""Name of a duration -> what it is, the same in every command, on the page and in JSON. docs/glossary.md has them."""

WORDS = {
    "accelerator utilisation": "Share of the training loop in which the accelerator computes: the union of its "
    "kernels, copies and collectives, mean of the GPUs or TPUs that worked. Operators of the CPU count only without "
    "any. Of a benchmark it follows DLIO's rule, which leaves out the first steps of each epoch.",
    "anchor": "A small write of the program inside a profiler annotation. Darshan and the profiler both see it, so it "
    "aligns their clocks.",
    "at stake": "The time that a perfect remedy for a finding could save at most. Remedies of the same cause do not "
    "add up.",
    "capture": "A directory NAME.capture with the whole recording of a run. A replay is a capture too.",
    "change point": "The record in a history from which on the results differ from the earlier ones by more than the "
    "threshold.",
    "checkpoint": "Saving the state of the training to storage.",
    "collective": "An exchange between ranks, such as allreduce, in which each waits for the others.",
    "compute": "Time in which the training computes, from the profile.",
    "consecutive": "An access that begins at the byte after the previous one of the same rank and file.",
    "cosine": "Similarity of two workloads as one number, 1 for equal shapes. It does not see scale.",
    "counters": "Darshan's totals per file. They cover the whole run but do not say when anything happened.",
    "coverage": "Trace coverage: the traced share of the bytes, or of the operations. The whole is what Darshan "
    "counted, plus known reads through mapped files and sockets.",
    "drift": "How much faster or slower than the source the schedule of a replay runs, in parts per million.",
    "DXT": "Darshan's extended tracing: start, end, offset and length of every read and write.",
    "exposed I/O": "I/O outside compute; hidden I/O is inside compute.",
    "failed": "Operations that returned an error or fewer bytes than recorded.",
    "generated": "Made from the description of a workload, not from a recording.",
    "in flight": "Begun and not ended yet. As a number: how many operations are in flight at once, on average.",
    "input wait": "Time in which the training loop waits for its next batch, for storage or for preprocessing.",
    "jitter": "How late this machine wakes an idle thread. Lag up to the jitter comes from the machine, not from the "
    "replay.",
    "KS": "Kolmogorov-Smirnov distance: the largest difference of two cumulative distributions, 0 for equal ones.",
    "lag": "How long after it was due an operation began: begin - due.",
    "lane": "One sequence of operations of a rank, such as the calls of one thread.",
    "latency": "How long an operation took: end - begin.",
    "pace": "The rule that decides when a replay issues an operation: "
    + ", ".join(f"`{pace.value}` ({pace.meaning})" for pace in Pace)
    + ".",
    "pipeline": "I/O together with the work on input (decoding, batching).",
    "random": "An access whose place does not follow from the two before.",
    "rank": "One process of the training job. -1 in a table stands for all ranks together.",
    "reconstructed": "Rebuilt from counters, for operations that were not traced. No total of traced operations "
    "includes them.",
    "record": "A JSON file with the runs, environment and verdict of an experiment, which `regress --record` writes.",
    "response": "How long after it was due an operation ended: end - due, that is lag and latency together.",
    "rest": "Time of a step in none of compute, input wait, I/O, collective and checkpoint.",
    "sequential": "An access at a higher offset than the previous one of the same rank and file.",
    "storage limit": "How much shorter the training would be with infinitely fast storage, by its causal model. The "
    "model keeps the dependencies between operations and the recorded times of compute and decoding, and lets "
    "operations take no time.",
    "stripe": "On Lustre: the piece of a file that lies on one storage target.",
    "think time": "Time between the end of an operation and the beginning of the next on its lane.",
    "traced": "Recorded one by one, with start and end.",
    "twin": "Files of the recorded sizes and layout, with made-up data, that a replay reads instead of the real data.",
    "warm-up": "The first step, if it is much longer than the others: it compiles, opens files and fills buffers.",
    "Wasserstein": "How far one distribution must be moved to become another, in the unit of the quantity.",
    "workload": "The description of a training job: its files, the order of its reads, the compute time of a step.",
    **DURATIONS,
}
"""Word -> meaning, in a few sentences."""
