"""What each training tool can run, how its settings are read and how a plan is written for it."""
