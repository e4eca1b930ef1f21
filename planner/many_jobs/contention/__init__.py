"""Jobs that meet on a cluster's network: how much each is slowed, by whom, on which links."""
