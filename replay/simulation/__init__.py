"""How long a training run takes on a storage that is only described: a discrete-event simulation without any I/O."""
