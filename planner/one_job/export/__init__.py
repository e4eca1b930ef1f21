"""Plans in the formats of launchers and cluster managers."""
