"""Jobs: what users do with them, and the actor that runs each one."""
