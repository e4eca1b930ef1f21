"""Which candidate plans are worth a measurement before one is chosen: Crius's halves by name, and our default."""
