"""The choices of a user, each stated once: keywords, options of commands, checks and documentation follow from it."""
