"""Plan, pacing, staging, the timed issue loop, back ends, MPI, fidelity, and the commands."""
