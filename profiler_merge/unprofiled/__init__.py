"""Steps that no profile shows, inferred from the profiled ones and from the reads of the rest of the job."""
