"""A plan in a tool's format, or the nearest that the tool runs."""
