"""The plan of one job: estimated, searched, explained, exported, run."""
