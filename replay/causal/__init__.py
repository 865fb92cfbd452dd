"""The causal model of the training loop behind the pace `steps`: which operations and events wait for which."""
