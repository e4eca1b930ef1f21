"""Hostile requests to the server of `cellplan serve`, and how quickly it answers good ones."""
