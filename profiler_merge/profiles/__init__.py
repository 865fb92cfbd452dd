"""Profiles of a framework: one event table for the files of every profiler, and the spans made from it."""
