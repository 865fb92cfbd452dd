"""How the clocks of logs and profiles are related, and which profile belongs to which rank."""
