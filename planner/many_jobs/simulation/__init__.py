"""Many jobs on one cluster under a policy, event by event; `engine.simulate` does it, `run` reads the files for it."""
