"""Records the requests that a job sends to object stores: the code that `record` puts into each of its processes.

`record` copies this folder beside its `sitecustomize`, so it needs the standard library alone, and Python 3.8.
"""
