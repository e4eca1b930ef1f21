"""The commands `plan` and `explain`: which search answers a request, and what is said about its plan."""
