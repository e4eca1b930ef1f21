"""Jobs that slow each other on the network: who slows whom, and what to do about it."""
