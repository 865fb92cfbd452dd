"""What people look at: tables on a terminal, and the HTML page."""
