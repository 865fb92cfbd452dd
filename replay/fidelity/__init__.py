"""How faithful a replay is: two captures to one comparison."""
