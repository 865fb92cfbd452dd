"""Many jobs at once, such as the archive of a computing centre: a capture of each job, and a table with a row for
each."""
