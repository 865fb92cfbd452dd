"""Predicts a training run on storage that a model describes, by a discrete-event simulation without I/O."""
