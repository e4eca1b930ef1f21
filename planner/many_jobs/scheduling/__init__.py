"""What policies stand on: queues, Cells of workloads, plans over sites, bounds on what any policy can do."""
