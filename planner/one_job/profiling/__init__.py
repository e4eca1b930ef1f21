"""Profiling as the command does it."""
