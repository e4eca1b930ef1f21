"""Unique priorities mapped to the few levels that a fabric has (Crux, section 4.3)."""
