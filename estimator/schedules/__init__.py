"""Pipeline schedules: how long an iteration takes, in closed form and event by event, and what a stage holds."""

from estimator.schedules.closed_form import flying_micro_batches, lower_bounds, time_schedule, time_schedules
from estimator.schedules.crowding import Crowd, crowd_of, crowding
from estimator.schedules.in_flight import in_flight
from estimator.schedules.orders import schedule_problem
from estimator.schedules.records import ScheduleTime, SimulatedSchedule, StageTimes, Task, Transfers
from estimator.schedules.simulate import simulate_schedule

__all__ = [
    "Crowd",
    "ScheduleTime",
    "SimulatedSchedule",
    "StageTimes",
    "Task",
    "Transfers",
    "crowd_of",
    "crowding",
    "flying_micro_batches",
    "in_flight",
    "lower_bounds",
    "schedule_problem",
    "simulate_schedule",
    "time_schedule",
    "time_schedules",
]
