"""The public functions of `dxt_replay`, thin layers over the packages beside this one."""
