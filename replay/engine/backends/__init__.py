"""One file a back end."""
