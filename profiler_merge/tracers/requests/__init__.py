"""Requests to object stores, which clients or their recorders logged, as operations of a capture."""
