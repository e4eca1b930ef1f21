"""An iteration event by event: every stage does its steps in order, each as soon as stage and input are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from math import inf

from estimator.schedules.orders import Action, Shape, Step, follower, leader, order_of, shape_of
from estimator.schedules.records import Kind, SimulatedSchedule, StageTimes, Task, Transfers, check_counts
from profiles.records import dataclass
from profiles.vocabulary import ScheduleName

SENDS_ALONE = ("zb-h1", "dualpipe")
"""Schedules whose sender does not wait until the receiver is there: in step with its neighbours, a stage could not run
ahead of them, which is where zero-bubble schedules gain."""

Message = tuple[int, int, Action]
"""Sender, receiver and the action whose result it carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Messages that a stage sends and receives in one group, standing still until all have passed."""

    sent: tuple[Message, ...]
    received: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What an action of a stage takes, whatever its micro-batch: the stage and chunk that its input comes from and the
    stage that its result goes to (None: no message), which takes `latency_s`."""

    duration_s: float
    source: tuple[int, int] | None
    target: int | None
    latency_s: float
    shared: tuple[tuple[int, float], ...]
    """The shared links that the message passes, by number, and for how long it occupies each."""


def simulate_schedule(
    schedule: ScheduleName, stages: Sequence[StageTimes], transfers: Transfers, micro_batches: int
) -> SimulatedSchedule:
    """Time of one iteration by evaluating the order of `estimator.schedules.orders` exactly.

    Overlapped transfers: a result arrives its transfer's seconds after the step that made it, or after the result
    before it on the same way over the same boundary, and waits for all before it on links that boundaries share.
    Otherwise stages stand still in groups of messages; a message begins when both ends are in their groups, and of the
    messages that one stage sends (or receives) in a group the gradient goes after the activation; that boundaries share
    links is not seen there. Raises ValueError where the schedule cannot be run with these counts (`schedule_problem`).

    >>> one = StageTimes(forward_s=(1,), backward_s=(2,), weight_s=(1,))
    >>> simulate_schedule("1f1b", [one] * 4, Transfers(forward_s=(0, 0, 0, 0)), 8).total_s
    33.0
    """
    tasks: list[Task] = []
    run = _run(schedule, stages, transfers, micro_batches, tasks)
    tasks.sort(key=lambda task: (task.stage, task.start_s, task.end_s))
    return SimulatedSchedule(total_s=max(run.clocks_s), tasks=tuple(tasks))


def total_by_events_s(
    schedule: ScheduleName, stages: Sequence[StageTimes], transfers: Transfers, micro_batches: int
) -> float:
    """Return the seconds of one iteration, as `simulate_schedule` does, without its tasks."""
    return max(_run(schedule, stages, transfers, micro_batches, None).clocks_s)


def _run(
    schedule: ScheduleName,
    stages: Sequence[StageTimes],
    transfers: Transfers,
    micro_batches: int,
    tasks: list[Task] | None,
) -> _Run:
    chunks = check_counts(stages, transfers)
    shape = shape_of(schedule, len(stages), chunks, micro_batches)
    run = _Run(shape=shape, times=stages, transfers=transfers, tasks=tasks)
    if run.queues:
        run.in_order_of_time()
    waiting = deque(range(shape.stages))
    while waiting:
        waiting.extend(run.advance(waiting.popleft()))
    if any(place < len(program) for place, program in zip(run.places, run.programs, strict=True)):
        raise ValueError(f"{shape}: the stages wait for each other at {run.places}")
    return run


@dataclass(slots=True, kw_only=True)
class _Run:
    """Where every stage is; `advance` takes one as far as it can and names the stages that may now go on. `tasks` is
    where each is added (None: nobody asks)."""

    shape: Shape
    times: Sequence[StageTimes]
    transfers: Transfers
    tasks: list[Task] | None
    programs: list[list[Step | _Meeting]] = field(init=False)
    places: list[int] = field(init=False)
    clocks_s: list[float] = field(init=False)
    ways: list[dict[tuple[Kind, int], _Way]] = field(init=False)
    arrived_s: dict[tuple[int, Kind, int, int], float] = field(default_factory=dict)
    sender_in: dict[Message, tuple[float, _Meeting]] = field(default_factory=dict)
    receiver_in: dict[Message, tuple[float, _Meeting]] = field(default_factory=dict)
    passed_s: dict[Message, float] = field(default_factory=dict)
    link_free_s: dict[tuple[int, int, Kind], float] = field(default_factory=dict)
    shared_free_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        count = self.shape.stages
        orders = [order_of(self.shape, stage) for stage in range(count)]
        if self._waits_for_arrival:
            self.programs = [list(order) for order in orders]
        else:
            self.programs = [_with_meetings(self.shape, stage, order) for stage, order in enumerate(orders)]
        self.places, self.clocks_s = [0] * count, [0.0] * count
        self.shared_free_s = [0.0] * len(self.transfers.shared)
        self.ways = [
            {own: self._way(stage, *own) for own in {action[:2] for step in order for action in step.actions}}
            for stage, order in enumerate(orders)
        ]

    @property
    def _waits_for_arrival(self) -> bool:
        return self.transfers.overlapped or self.shape.schedule in SENDS_ALONE

    @property
    def queues(self) -> bool:
        """Whether messages over several boundaries wait for each other, in the order in which they are sent."""
        return bool(self.transfers.shared) and self._waits_for_arrival

    def in_order_of_time(self) -> None:
        """Take every stage as far as it can, of the steps that may be done always the one that ends first."""
        while True:
            ready = [(end_s, stage) for stage in range(self.shape.stages) if (end_s := self._next_end_s(stage)) < inf]
            if not ready:
                return
            self._follow_arrivals(min(ready)[1], most=1)

    def _next_end_s(self, stage: int) -> float:
        """When the stage's next step ends; infinite where it has none, or nobody knows."""
        place, program, ways = self.places[stage], self.programs[stage], self.ways[stage]
        if place == len(program):
            return inf
        step = program[place]
        assert isinstance(step, Step)
        end_s = self.clocks_s[stage]
        for kind, chunk, k in step.actions:
            source = ways[kind, chunk].source
            if source is not None:
                end_s = max(end_s, self.arrived_s.get((source[0], kind, source[1], k), inf))
        return end_s + sum(ways[kind, chunk].duration_s for kind, chunk, _ in step.actions)

    def advance(self, stage: int) -> set[int]:
        if self._waits_for_arrival:
            return self._follow_arrivals(stage)
        touched: set[int] = set()
        program = self.programs[stage]
        while self.places[stage] < len(program):
            item = program[self.places[stage]]
            if isinstance(item, Step):
                self.clocks_s[stage] = self._work(stage, item, self.clocks_s[stage])
            elif not self._meet(stage, item, touched):
                break
            self.places[stage] += 1
        return touched - {stage}

    def _follow_arrivals(self, stage: int, most: int | None = None) -> set[int]:
        """Step after step (at most so many), each once its inputs have arrived; its results leave at its end."""
        ways, program, clock_s = self.ways[stage], self.programs[stage], self.clocks_s[stage]
        arrived, link_free, overlapped = self.arrived_s, self.link_free_s, self.transfers.overlapped
        touched: set[int] = set()
        end = len(program) if most is None else min(len(program), self.places[stage] + most)
        for place in range(self.places[stage], end):
            step = program[place]
            assert isinstance(step, Step)
            start_s = clock_s
            for kind, chunk, k in step.actions:
                source = ways[kind, chunk].source
                if source is not None:
                    arrived_s = arrived.get((source[0], kind, source[1], k))
                    if arrived_s is None:
                        self.places[stage], self.clocks_s[stage] = place, clock_s
                        return touched
                    start_s = max(start_s, arrived_s)
            clock_s = self._work(stage, step, start_s)
            for kind, chunk, k in step.actions:
                way = ways[kind, chunk]
                if way.target is not None:
                    # Activations over a boundary follow each other, and so do gradients.
                    link = (stage, way.target, kind)
                    left_s = max(clock_s, link_free.get(link, 0.0), *self._shared_until_s(way)) + way.latency_s
                    self._occupy(way, left_s - way.latency_s)
                    arrived[stage, kind, chunk, k] = link_free[link] = left_s
                    if not overlapped:
                        clock_s = left_s
                    touched.add(way.target)
        self.places[stage], self.clocks_s[stage] = end, clock_s
        return touched

    def _shared_until_s(self, way: _Way) -> list[float]:
        return [self.shared_free_s[number] for number, _ in way.shared]

    def _occupy(self, way: _Way, from_s: float) -> None:
        for number, occupied_s in way.shared:
            self.shared_free_s[number] = from_s + occupied_s

    def _work(self, stage: int, step: Step, start_s: float) -> float:
        """The end of a step."""
        ways = self.ways[stage]
        for kind, chunk, k in step.actions:
            end_s = start_s + ways[kind, chunk].duration_s
            if self.tasks is not None:
                task = Task(stage=stage, chunk=chunk, micro_batch=k, kind=kind, start_s=start_s, end_s=end_s)
                self.tasks.append(task)
            start_s = end_s
        return start_s

    def _meet(self, stage: int, meeting: _Meeting, touched: set[int]) -> bool:
        fresh = (meeting.sent or meeting.received)[0] not in (self.sender_in if meeting.sent else self.receiver_in)
        if fresh:
            here = (self.clocks_s[stage], meeting)
            self.sender_in.update(dict.fromkeys(meeting.sent, here))
            self.receiver_in.update(dict.fromkeys(meeting.received, here))
            # A gradient also waits for the activations of both its ends, so news travel two stages far.
            touched.update((stage + far) % self.shape.stages for far in (-2, -1, 1, 2))
        ends_s = [self._passed_s(message) for message in (*meeting.sent, *meeting.received)]
        known_s = [end_s for end_s in ends_s if end_s is not None]
        if len(known_s) < len(ends_s):
            return False
        self.clocks_s[stage] = max(known_s)
        return True

    def _passed_s(self, message: Message) -> float | None:
        if message in self.passed_s:
            return self.passed_s[message]
        if message not in self.sender_in or message not in self.receiver_in:
            return None
        (sender_s, sender), (receiver_s, receiver) = self.sender_in[message], self.receiver_in[message]
        start_s = max(sender_s, receiver_s)
        if message[2][0] == "backward":
            for other in (*sender.sent, *receiver.received):
                if other[2][0] == "forward":
                    end_s = self._passed_s(other)
                    if end_s is None:
                        return None
                    start_s = max(start_s, end_s)
        self.passed_s[message] = start_s + self._latency_s(message)
        return self.passed_s[message]

    def _way(self, stage: int, kind: Kind, chunk: int) -> _Way:
        step = Step(actions=((kind, chunk, 0),))
        leaving = next(iter(_outputs(self.shape, stage, step)), None)
        coming = next(iter(_inputs(self.shape, stage, step)), None)
        return _Way(
            duration_s=self._duration_s(stage, kind, chunk),
            source=None if coming is None else (coming[0], coming[2][1]),
            target=None if leaving is None else leaving[1],
            latency_s=0.0 if leaving is None else self._latency_s(leaving),
            shared=() if leaving is None else self._shared(leaving),
        )

    def _duration_s(self, stage: int, kind: Kind, chunk: int) -> float:
        times = self.times[stage]
        if kind == "forward":
            return times.forward_s[chunk]
        if kind == "weight":
            return times.weight_s[chunk]
        apart_s = times.weight_s[chunk] if self.shape.schedule in ("zb-h1", "dualpipe") else 0.0
        return times.backward_s[chunk] - apart_s

    def _latency_s(self, message: Message) -> float:
        sender, receiver, _ = message
        return 0.0 if sender == receiver else self.transfers.forward_s[self._boundary(message)]

    def _shared(self, message: Message) -> tuple[tuple[int, float], ...]:
        boundary, (sender, receiver, _) = self._boundary(message), message
        up = (sender < receiver) != (self.shape.schedule == "interleaved" and _goes_round(message))
        occupied_s = [(link.up_s if up else link.down_s)[boundary] for link in self.transfers.shared]
        return tuple((number, seconds) for number, seconds in enumerate(occupied_s) if seconds > 0)

    def _boundary(self, message: Message) -> int:
        sender, receiver, _ = message
        wraps = self.shape.schedule == "interleaved" and _goes_round(message)
        return self.shape.stages - 1 if wraps else min(sender, receiver)


def _goes_round(message: Message) -> bool:
    """Whether it is between the last stage and the first: of two stages either way is between these two."""
    sender, receiver, (kind, _, _) = message
    return (sender > receiver) == (kind == "forward")


def _outputs(shape: Shape, stage: int, step: Step) -> list[Message]:
    """What leaves a stage after a step; a result that the stage itself uses goes by no message."""
    found = []
    for action in step.actions:
        kind, chunk, _ = action
        towards = {"forward": follower, "backward": leader}.get(kind)
        other = towards(shape, stage, chunk) if towards else None
        if other and other[0] != stage:
            found.append((stage, other[0], action))
    return found


def _inputs(shape: Shape, stage: int, step: Step) -> list[Message]:
    """What a step waits for."""
    found = []
    for kind, chunk, k in step.actions:
        towards = {"forward": leader, "backward": follower}.get(kind)
        other = towards(shape, stage, chunk) if towards else None
        if other and other[0] != stage:
            found.append((other[0], stage, (kind, other[1], k)))
    return found


def _with_meetings(shape: Shape, stage: int, order: Sequence[Step]) -> list[Step | _Meeting]:
    """The steps with the groups of messages between them, as each step's `exchange` says."""
    program: list[Step | _Meeting] = []
    received: set[Message] = set()
    leaving: list[Message] = []
    for place, step in enumerate(order):
        lacking = [message for message in _inputs(shape, stage, step) if message not in received]
        if lacking:
            program.append(_Meeting(sent=(), received=tuple(lacking)))
        program.append(step)
        leaving += _outputs(shape, stage, step)
        if step.exchange == "held":
            continue
        coming: list[Message] = []
        for later in order[place + 1 :] if step.exchange == "batched" else ():
            coming += _inputs(shape, stage, later)
            if later.exchange != "held":
                break
        if leaving or coming:
            program.append(_Meeting(sent=tuple(leaving), received=tuple(coming)))
        received.update(lacking, coming)
        leaving = []
    return program
