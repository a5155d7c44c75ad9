"""What the application reaches through its ports: the database and the planner."""
