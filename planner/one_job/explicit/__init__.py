"""Explicit plans: from options or a plan file to a setup, its estimate, and back into a plan."""
