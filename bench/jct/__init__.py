"""How good predicted completion times are, and how fast."""
