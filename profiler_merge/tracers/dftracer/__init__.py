"""DFTracer's traces as a source of operations and of spans."""
