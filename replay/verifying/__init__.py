"""Verifies that captures and staged twins are intact; reads only."""
