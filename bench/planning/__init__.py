"""How fast plans are found, and how good they are beside what others chose."""
