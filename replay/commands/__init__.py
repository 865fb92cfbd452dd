"""One small file a command; `main` alone catches errors."""
