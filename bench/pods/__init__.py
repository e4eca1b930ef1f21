"""Placing jobs into pods: Arnold's table 1 with figure 7, and figure 8, beside ours."""
