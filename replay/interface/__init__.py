"""What the public functions of `dxt_replay` do: thin faces of the packages beside this one."""
