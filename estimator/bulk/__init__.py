"""Thousands of explicit plans priced at once, each exactly as `estimator.pricing.evaluate` prices it."""
