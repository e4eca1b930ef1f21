"""A plan on the pods of a site: free nodes by part, the plan's matrix on them, the placement of least time."""
