"""Launch formats: a plan as a job of a cluster manager."""
