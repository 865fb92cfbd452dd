"""The twin data set: places its files, makes them, and touches no other file."""
