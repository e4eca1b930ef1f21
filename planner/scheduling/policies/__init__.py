"""One file for each policy; `planner.scheduling.catalogue` names them."""
