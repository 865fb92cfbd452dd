"""Steps that no profile shows: extended from the profiled ones over the reads of the rest of the job."""
