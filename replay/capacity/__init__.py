"""How many accelerators a storage carries: the largest number of ranks whose utilisation stays above a limit."""
