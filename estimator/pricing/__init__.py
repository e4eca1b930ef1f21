"""One explicit plan, evaluated: what a model with every degree and setting fixed takes in time and memory."""
