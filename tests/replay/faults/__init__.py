"""Faults of the machine, injected below the program: into the calls of libc, by limits, by signals and full disks."""
