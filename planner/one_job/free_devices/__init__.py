"""What of a cluster is free now, from what managers print."""
