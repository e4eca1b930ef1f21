"""Cells: what may be trained where, split over stages."""
