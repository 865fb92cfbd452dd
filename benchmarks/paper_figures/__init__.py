"""Figures 9 to 15 of the DLIO paper (Devarajan et al., CCGrid 2021), made anew; README.md has the outcome."""
