"""Output for people: tables on a terminal, and the HTML page."""
