"""The server behind `cellplan serve`."""
