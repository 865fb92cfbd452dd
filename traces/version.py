"""The release, as it is written into captures and shown by `dxt-replay --version`."""

VERSION = "0.3.0"
