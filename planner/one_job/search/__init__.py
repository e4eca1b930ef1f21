"""The best plan of a stated space: what is legal (`space`), which of it is best and how that is known (`exact`)."""
