"""The best plan on several groups of equal devices: which choices there are, and how they are bounded."""
