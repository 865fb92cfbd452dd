"""From recordings to captures: Darshan logs, profiles, clock alignment and merge; and the analysis of a capture."""
