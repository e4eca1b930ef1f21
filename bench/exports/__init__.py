"""Exports checked by the tools that read them."""
