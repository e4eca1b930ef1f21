"""How few measurements a choice among many plans takes, and how good it is, in plans that were measured."""
