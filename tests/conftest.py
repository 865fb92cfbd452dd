"""Hypothesis: the same examples in every run, so that a run tells something of the change and nothing else.

    pytest --hypothesis-profile=search        # other examples in every run: what `make test-slow` does

Examples run as long as they need: these tests share their machine.
"""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")
