"""A Darshan log of the replay itself: what a tool that knows nothing of the replayer counted, file by file."""
