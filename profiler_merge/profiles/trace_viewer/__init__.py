"""The trace.json.gz that TensorFlow 2.2 to 2.10 and JAX write for their trace viewer."""
