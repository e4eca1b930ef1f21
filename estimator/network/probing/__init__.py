"""Finding on a real network which UDP source port takes which way."""
