# %% [markdown]
# # The I/O of a training run in a few minutes
# A notebook as a script: open it in Jupyter (jupytext), VS Code or PyCharm and run it cell by cell, or all of it with
# `python docs/example_notebook.py`. It looks at the bundled capture of an ImageNet-like run.

# %% Merge the log and the profiles of the two ranks into a capture
import tempfile
from pathlib import Path

from profiler_merge.analysis.analyse import analyse
from profiler_merge.analysis.findings import findings_of
from profiler_merge.analysis.table_formats import to_pandas
from profiler_merge.analysis.timeline import timeline
from profiler_merge.merge import merge
from traces.part import Part
from traces.samples import sample
from traces.store.part_capture import part_of
from traces.store.reader import open_capture
from traces.units import NS_PER_MS

files = sample("imagenet")
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "imagenet.capture"
merge([files.log], list(files.profiles), path)
capture = open_capture(path)

# %% Everything in one pass over the operations
found = analyse(capture)
print(
    f"{found.summary.operations.read} reads of {found.summary.bytes.read / 1e6:.0f} MB in {found.summary.files} files"
)
for name, share in found.overlap.shares().items():
    print(f"{name:22} {share:6.2f} %")

# %% [markdown]
# ## What stands out
# %%
for finding in findings_of(found):
    print(f"[{finding.severity}] {finding.title}\n    {finding.evidence}\n    {finding.remedy}")

# %% [markdown]
# ## Slow steps, and why
# Everything that is a table becomes a DataFrame.
# %%
slowest = to_pandas(found.overlap.slowest(5))
print(slowest[["rank", "step", "duration_ns", "excess_ns", "why"]].to_string(index=False))

# %% Steps of a rank: waiting for input against reading
steps = to_pandas(found.overlap.steps)
first = steps[steps["rank"] == 0].iloc[1:]
print(first[["input_wait_ns", "io_ns", "compute_ns", "collective_ns"]].describe().round().to_string())

# %% How the files are read
by_file = to_pandas(found.patterns.files)
data = by_file[by_file["format"] == "tfrecord"]
print(data[["path", "ranks", "reads", "bytes_read", "reread_bytes", "pattern"]].to_string(index=False))

# %% Sizes of the requests
print(to_pandas(found.sizes.exact(top=3)).to_string(index=False))

# %% The course of the run, in bins of 100 ms, and of its first part in bins of 1 ms
course = to_pandas(timeline(capture, bin_ns=100 * NS_PER_MS).table)
busiest = course.sort_values("read_mib_s", ascending=False).head(3)
print(busiest[["start_ns", "reads", "read_mib_s", "in_flight_mean", "in_flight_max"]].to_string(index=False))

begin = int(course["start_ns"][course["reads"] > 0].iloc[0])
window = Part(from_ns=begin, until_ns=begin + 100 * NS_PER_MS, paths=("*.tfrecord",))
close = timeline(part_of(capture, window), bin_ns=NS_PER_MS, per_rank=True)
print("bytes read in each ms by rank 0:", close.matrix("bytes_read")[0].tolist())

# %% Done
folder.cleanup()
