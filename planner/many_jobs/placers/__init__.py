"""Rules that say which free devices of a pool a job gets."""
