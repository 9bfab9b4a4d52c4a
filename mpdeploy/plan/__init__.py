"""Which value is computed in which format, and why."""
