#!/bin/bash
#flux: --job-name=dxt-replay
#flux: --nodes=2
#flux: --time-limit=1h
# Each MPI process replays its part of the recorded ranks. `flux run` needs an mpi4py that was built with the cluster's MPI.
set -euo pipefail

capture=${CAPTURE:-run.capture}
target=${TARGET:-/scratch/$USER/twin}
replay=${REPLAY:-replay.capture}

mkdir -p "$target"
dxt-replay doctor "$target"
dxt-replay stage "$capture" --target "$target"
flux run -N 2 -n 8 dxt-replay run "$capture" --target "$target" -o "$replay" --cold --timeout 50m
dxt-replay compare "$capture" "$replay"
