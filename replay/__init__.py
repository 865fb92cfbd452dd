"""The replayer of dxt-replay: plan, pacing, staging, the timed loop, back ends, MPI, fidelity, and the commands."""
