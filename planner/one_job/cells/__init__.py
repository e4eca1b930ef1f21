"""Cells of one job, as requests, plans and tables."""
