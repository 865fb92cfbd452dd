"""The twin data set: where its files are, how they are made, and that nothing else is touched."""
