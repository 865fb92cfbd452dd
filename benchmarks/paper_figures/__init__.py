"""Figures 9 to 15 of the DLIO paper (Devarajan et al., CCGrid 2021), one command each.

    python -m benchmarks.paper_figures --figure 9a

generates the figure's workload, changes the parameter that the figure varies, simulates each variant on a file system
like the paper's (or replays it with --run DIR), and prints it beside what the paper and its notebooks printed.
README.md has the outcome.
"""
