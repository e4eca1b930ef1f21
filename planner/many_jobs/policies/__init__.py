"""One file for each policy; `planner.many_jobs.policies.catalogue` names them."""
