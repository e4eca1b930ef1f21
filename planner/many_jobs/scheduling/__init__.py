"""Many jobs on one cluster: what policies see and answer, what Cells they compare, and the policies themselves."""
