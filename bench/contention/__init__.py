"""Crux's experiments on the network policies."""
