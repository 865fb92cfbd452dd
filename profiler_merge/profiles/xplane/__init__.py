"""XPlane, the profiles of TensorFlow and JAX."""
