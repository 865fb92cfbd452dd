"""The causal model of the training loop behind the pace `steps`: what an operation waits for, and what waits for it."""
