"""Measures a file system with the replay's own issue loop, and makes a storage model for simulations."""
