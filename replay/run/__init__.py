"""One replay, from the user's options to the capture of the replay."""
