"""What a search may choose: the request, its constraints, the degrees and cuts that are legal, what it is for."""
