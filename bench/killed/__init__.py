"""What is left of a command that is killed: see `bench.killed.__main__`."""
