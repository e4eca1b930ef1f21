"""Many jobs over time on the links that they share: discrete events, to the end or until every job's rate is steady."""
