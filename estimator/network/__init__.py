"""Who shares a wire with whom, and what each gets of it."""
