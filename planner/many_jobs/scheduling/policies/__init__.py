"""One file for each policy; `planner.many_jobs.scheduling.catalogue` names them."""
