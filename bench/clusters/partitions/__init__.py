"""Other ways to cut a graph than the genetic search that the planner uses, and the graphs of SpiderFlow's Table 2."""
