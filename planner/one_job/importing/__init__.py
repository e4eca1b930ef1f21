"""Settings of launchers that a user has: read, estimated as an explicit plan, and compared with the best."""
