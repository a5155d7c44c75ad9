"""Measures a job's layers, links and steps on this machine, for `planaria profile`."""
