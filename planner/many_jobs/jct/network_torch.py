"""The paper's neural network beside the model (Arnold, appendix G: a deep network and boosting were tried)."""

from __future__ import annotations

import numpy as np

from planner.many_jobs.jct.baselines import Points
from planner.many_jobs.jct.boosting import thresholds_of
from planner.many_jobs.jct.features import Matrix
from planner.many_jobs.jct.intervals import LOSSES, point_of, shares_of
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.model import Start, spread
from planner.many_jobs.jct.prepared import Prepared
from profiles.errors import InputError

HIDDEN, EPOCHS, BATCH = 128, 6, 512


def network_points(prepared: Prepared, rows: Ints, truth: Floats, tested: Ints, *, seed: int, threads: int) -> Points:
    """The points of a small neural network with two hidden layers on the same features, ranked, and with the same
    thresholds as its outputs. InputError where torch is missing."""
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(where="jct", key="network", found="no torch", expected="pip install torch") from None

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            odds = _network_odds(prepared, rows, truth, tested)
    finally:
        torch.set_num_threads(before)
    cap = prepared.cap
    thresholds = thresholds_of(cap)
    start = Start(
        cap=cap,
        thresholds=thresholds,
        odds=(0.0,) * len(thresholds),
        shares=shares_of(truth, cap),
    )
    masses = spread(start, [odds], None)
    return {loss: point_of(masses, loss) for loss in LOSSES}


def _network_odds(prepared: Prepared, rows: Ints, truth: Floats, tested: Ints) -> Floats:
    import torch

    inputs, asked = _ranks(prepared.features[rows], prepared.features[rows], prepared.features[tested])
    longer = (truth[:, None] > np.array(thresholds_of(prepared.cap))).astype(np.float32)
    network = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, longer.shape[1]),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
    samples, targets = torch.from_numpy(inputs), torch.from_numpy(longer)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(samples)).split(BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(network(samples[chosen]), targets[chosen])
            loss.backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        return np.asarray(network(torch.from_numpy(asked)).numpy(), dtype=np.float64)


def _ranks(reference: Matrix, *others: Matrix) -> tuple[Matrix, ...]:
    """Each feature as its rank among the known ones in [-1, 1], 0 where it lacks; and a column that says so."""
    ranked_all = []
    ordered = np.sort(reference, axis=0)
    counts = (~np.isnan(reference)).sum(axis=0)
    for matrix in others:
        ranked = np.zeros_like(matrix)
        for column in range(matrix.shape[1]):
            if counts[column]:
                place = np.searchsorted(ordered[: counts[column], column], matrix[:, column])
                ranked[:, column] = place / counts[column] * 2.0 - 1.0
        missing = np.isnan(matrix)
        ranked[missing] = 0.0
        ranked_all.append(np.concatenate([ranked, missing.astype(np.float32)], axis=1))
    return tuple(ranked_all)
