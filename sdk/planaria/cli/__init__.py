"""The command line. `main.py` is the entry point; each group of commands has its own module."""
