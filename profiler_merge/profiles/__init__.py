"""Profiles of a framework: the event table that every profiler's files become, and the spans made of it."""
