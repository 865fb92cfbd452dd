"""From the rows of a capture to the items that lanes issue, and when each is due."""
