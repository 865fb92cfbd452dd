"""Runs a job under a tracer: finds the tracer, sets it up for a Python training job, and collects its output."""
