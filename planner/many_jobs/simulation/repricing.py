"""How fast running jobs are, set anew when those beside them, on the network or on their own devices, came or went."""

from __future__ import annotations

from math import isfinite

from planner.many_jobs.simulation.applying import expect_end
from planner.many_jobs.simulation.run_state import RESTARTED, RunState
from planner.many_jobs.simulation.seat_costs import count_seats
from planner.many_jobs.simulation.turns import part_of_devices, turn_speeds


def reprice(run: RunState) -> None:
    """Let every job whose neighbours came or went, on the network or on its own devices, go on at its new speed: at
    once, or when its connections are open anew."""
    if not (run.turns.changed or (run.shared is not None and run.shared.changed)):
        return
    speeds = [] if run.shared is None else list(run.shared.beside_others())
    if run.turns.changed:
        told = {state.index for state, *_ in speeds}
        speeds += ((state, iteration_s, 0.0) for state, iteration_s in turn_speeds(run, told))
    for state, iteration_s, pause_s in speeds:
        if not (isfinite(iteration_s) and iteration_s > 0):
            raise run.error(state.job.id, f"{iteration_s} s for an iteration beside others", "a finite time above 0")
        if not state.producing:
            # Who is restarting has no connections yet; who waits for some to be opened waits for others from now on.
            left_s = state.progress_from_s - run.clock.now_s
            pause_s = pause_s - left_s if left_s <= pause_s else 0.0
        held = part_of_devices(run, state)
        if iteration_s == state.iteration_time_s and held == state.held and not pause_s:
            continue
        if state.producing:
            run.totals.pause(state.relative_rate)
        count_seats(run, state)
        state.change_speed(iteration_s)
        state.held = held
        if pause_s:
            state.producing = False
            state.progress_from_s += pause_s
            run.totals.reopening_device_s += state.held * pause_s
        if state.producing:
            run.totals.produce(state.relative_rate)
        else:
            run.push(state.progress_from_s, RESTARTED, state.index, state.version, state)
        expect_end(run, state)
