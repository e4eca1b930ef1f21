"""Scheduling by Cells (Crius section 6): what each job may run as, what that is worth, and the search over it."""
