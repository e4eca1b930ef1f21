"""Measured runs of others, predicted: reading run tables, errors, baselines, what `cellplan validate` prints."""
