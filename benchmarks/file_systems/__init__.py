"""Does `regress` find changes of known direction on real file systems, and does it raise false alarms?

Each comparison replays a capture on two targets that differ in one known thing, or in nothing (A/A).
"""
