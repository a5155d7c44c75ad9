"""A cluster on this machine: what `planaria up` starts, finds again and stops."""
