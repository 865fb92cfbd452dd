"""Compares a replay with its source."""
