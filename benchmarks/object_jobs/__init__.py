"""Small PyTorch jobs that read objects, each through another client, for `benchmarks.object_prediction`."""
