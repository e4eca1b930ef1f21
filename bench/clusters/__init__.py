"""SpiderFlow's tables and figures, one command each: `python -m bench.clusters.NAME`."""
