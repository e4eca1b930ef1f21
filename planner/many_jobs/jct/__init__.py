"""Predicted completion times: how long a job will run, from what is known when it is submitted.

Source: Arnold, appendix G (10-minute intervals, gradient boosting, randomised search, bagging). `jobs` reads a trace,
`features` and `incremental` turn it and the jobs finished so far into figures, `boosting` fits, `model` predicts,
`evaluation` compares with baselines, `online` serves a simulator.
"""
