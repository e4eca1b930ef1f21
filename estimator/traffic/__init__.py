"""What a job sends in an iteration: from a plan, stated by hand, or read off counters; and played back alone."""
