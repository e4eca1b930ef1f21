"""What hosts, NICs and switches are told of a decision: environment, levels, source ports, maps; nothing is run."""
