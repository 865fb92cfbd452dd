"""Reads the output of strace as a source of operations."""
