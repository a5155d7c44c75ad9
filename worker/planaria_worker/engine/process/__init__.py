"""The engine as a process: start, directives, reports, watchdog."""
