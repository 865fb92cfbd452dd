"""Compares two captures: did a replay do the recorded work, and how fast was the storage?"""
