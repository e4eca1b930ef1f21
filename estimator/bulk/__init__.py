"""Thousands of explicit plans priced at once, each exactly as `estimator.explicit.evaluate` prices it."""
