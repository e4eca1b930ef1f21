"""What a worker of a run does in either framework: reads its orders, trains, writes a line for all that happens."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimator.frontends.load import load_file_model
from estimator.host.worker_processes import read_request
from planner.one_job.running.data import Data, load_tokens, random_data
from planner.one_job.running.program import Program, program_of
from planner.one_job.running.record import Orders
from planner.shared.plan_file import parse_plan

Emit = Callable[[dict[str, Any]], None]


def ordered_program(orders: Orders) -> Program:
    """Return the program of the plan that `orders` hold. InputError where it cannot be run."""
    plan = parse_plan(orders.plan, "plan")
    return program_of(plan, load_file_model(plan.model.reference, where="plan", key="model.reference"), where="plan")


def ordered_data(orders: Orders, program: Program) -> Data:
    """Return what to train on: the tokens of the file that `orders` name, or random samples."""
    if orders.data is not None:
        return load_tokens(
            Path(orders.data),
            program.model,
            seq_len=program.seq_len,
            raw_dtype=orders.data_dtype,
            samples=(orders.warm_ups + orders.steps) * program.global_batch,
        )
    return random_data(program.model, seq_len=program.seq_len, seed=orders.seed)


def serve(work: Callable[[dict[str, Any], Emit], None]) -> None:
    """Do `work` with this worker's request; where it fails, say why on standard error and end the process at once:
    threads and devices may still wait for others that will not come."""
    request = read_request()
    with Path(request["results"]).open("a", encoding="utf-8") as lines:

        def emit(value: dict[str, Any]) -> None:
            print(json.dumps(value), file=lines, flush=True)

        try:
            work(request, emit)
        except Exception as error:
            words = str(error).strip().splitlines()
            print(f"{type(error).__name__}: {words[0] if words else 'no message'}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
