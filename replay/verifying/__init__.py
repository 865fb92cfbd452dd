"""Whether a capture and a staged twin are what they were when they were written; reads only."""
