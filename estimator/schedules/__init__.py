"""Pipeline schedules: how long an iteration takes, in closed form and event by event, and what a stage holds."""

from estimator.schedules.closed_form import time_schedule
from estimator.schedules.in_flight import in_flight
from estimator.schedules.orders import schedule_problem
from estimator.schedules.records import ScheduleTime, SimulatedSchedule, StageTimes, Task, Transfers
from estimator.schedules.simulate import simulate_schedule

__all__ = [
    "ScheduleTime",
    "SimulatedSchedule",
    "StageTimes",
    "Task",
    "Transfers",
    "in_flight",
    "schedule_problem",
    "simulate_schedule",
    "time_schedule",
]
