"""Pipeline schedules: how long an iteration takes, in closed form and event by event, and what a stage holds."""
