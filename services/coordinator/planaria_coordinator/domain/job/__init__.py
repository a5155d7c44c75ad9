"""A job: its state, the signals it receives, the actions it asks for, its end."""
