"""Many jobs at once, as a centre's archive holds them: their captures made, and a line for each job."""
