"""The commands `plan` and `estimate` of one plan: which search answers a request, and what is said about its plan."""
