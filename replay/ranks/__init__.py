"""The processes of one replay: MPI, stopping together, and naming one that died."""
