"""This host: what its processor is called, and worker processes on it."""
