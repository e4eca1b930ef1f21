"""Many jobs on a cluster: traces, policies, simulation, sites, placement."""
