"""Whose traffic goes first, and which way: what says so, by name, and the parts that it is made of."""
