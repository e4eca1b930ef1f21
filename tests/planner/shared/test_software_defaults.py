"""What is taken where nobody says: the software's own habit, else what memory forces, and how wide that makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.software import load_framework
from planner.one_job.explicit.unsaid import take_first_that_fits, widened_by_habits, widened_by_larger_batches
from planner.shared.software_defaults import choices_in_turn, default_local_batch, default_micro_batch, recompute_ladder
from profiles.vocabulary import Infeasible
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, request_of


@pytest.mark.parametrize(
    ("software", "share", "pp", "seq_len", "samples"),
    [
        ("torchtitan", 16, 1, 8192, 16),
        ("torchtitan", 16, 4, 8192, 4),
        ("torchtitan", 6, 4, 8192, 3),
        ("megatron-core", 16, 1, 8192, 1),
        ("megatron-core", 16, 1, 2048, 4),
        ("megatron-core", 6, 1, 2048, 3),
        ("megatron-core", 16, 4, 2048, 1),
        ("megatron-core", 64, 4, 2048, 4),
        ("megatron-core", 16, 1, 0, 16),
    ],
)
def test_a_micro_batch_that_nobody_gave(software: str, share: int, pp: int, seq_len: int, samples: int) -> None:
    assert default_micro_batch(load_framework(software), share=share, pp=pp, seq_len=seq_len)[0] == samples


def test_a_local_batch_has_the_same_tokens_for_each_device_that_shares_it() -> None:
    titan = load_framework("torchtitan")
    assert [default_local_batch(titan, 8192, ranks) for ranks in (1, 8)] == [1, 8]
    assert default_local_batch(titan, 131072, 8) == 1
    assert default_local_batch(titan.for_size(405_000_000_000), 8192, 8) == 2


def test_recomputation_starts_where_the_software_does() -> None:
    assert recompute_ladder(load_framework("megatron-core")) == ("none", "selective", "full")
    assert recompute_ladder(load_framework("torchtitan")) == ("selective", "full")


def test_software_that_does_not_accumulate_recomputes_before_it_takes_less_at_a_time() -> None:
    kinds = recompute_ladder(load_framework("torchtitan"))
    tried = choices_in_turn(load_framework("torchtitan"), (4, 2), kinds, 8)
    assert tried == ((4, "selective", None), (4, "full", None), (2, "full", None))
    maxtext = choices_in_turn(load_framework("maxtext"), (4, 2), ("full",), 8)
    assert maxtext == ((4, "full", None), (2, "full", None))


def test_megatron_recomputes_in_as_few_layers_as_need_be() -> None:
    framework = load_framework("megatron-core")
    tried = choices_in_turn(framework, (2, 1), recompute_ladder(framework), 10)
    few = tuple((1, "full", layers) for layers in (2, 3, 5, 8))
    assert tried == (
        (2, "none", None),
        (1, "none", None),
        (1, "selective", None),
        *few,
        (2, "full", None),
        (1, "full", None),
    )
    shared = load_framework("deepspeed")
    assert all(layers is None for _, _, layers in choices_in_turn(shared, (1,), recompute_ladder(shared), 10))


def test_a_run_that_ran_may_need_a_little_more_than_there_is() -> None:
    def evaluate(setup: Setup) -> Evaluation | Infeasible:
        plain = fake_evaluate(setup)
        first = replace(plain.memory[0], activation_bytes=plain.device_memory_bytes[0])
        return replace(plain, memory=(first, *plain.memory[1:]))

    setups = request_of(dp=8, micro_batch=1).setups
    strict, slack = (take_first_that_fits(setups, evaluate, slack=each) for each in (0.0, 0.1))
    assert not isinstance(strict, Infeasible)
    assert not isinstance(slack, Infeasible)
    assert (strict.setup, slack.setup) == (setups[-1], setups[0])


def test_torchtitan_as_a_user_types_it_does_not_accumulate_and_shards_the_weights() -> None:
    request = request_of("llama3-8b", "h100:8x8", tp=8, software="torchtitan")
    setup = request.setups[0]
    assert (setup.micro_batches, setup.micro_batch) == (1, 64)
    assert (setup.stages[0].zero, setup.stages[0].sequence_parallel, setup.stages[0].recompute) == (
        3,
        True,
        "selective",
    )
    piped = request_of("llama3-8b", "h100:8x8", tp=2, pp=4, software="torchtitan").setups[0]
    assert piped.micro_batches == 4
    assert any("without" not in sentence and "--zero" in sentence for sentence in request.assumptions)


def test_what_is_said_stands() -> None:
    (setup,) = request_of(
        "llama3-8b",
        "h100:8x8",
        tp=8,
        software="torchtitan",
        micro_batch=2,
        zero=0,
        sequence_parallel=False,
        recompute="none",
    ).setups
    assert (setup.stages[0].zero, setup.stages[0].sequence_parallel) == (0, False)


def test_no_software_named_is_said_in_one_line() -> None:
    for cluster, name in (
        ("h100:1x8", "generic"),
        ("v100-32gb:1x8", "generic-older"),
        ("rtx-4090:1x4", "generic-boards"),
    ):
        request = request_of(cluster=cluster, devices=2, dp=2)
        assert request.setups[0].recipe.software.name == name
        assert sum("none named" in sentence for sentence in request.assumptions) == 1


def test_a_choice_that_matters_widens_the_interval_and_says_by_how_much() -> None:
    def slower(seconds: float) -> Any:
        def evaluate(setup: Setup) -> Evaluation | Infeasible:
            plain = fake_evaluate(setup)
            return plain if setup.stages[0].recompute == "none" else replace(plain, iteration_time_s=seconds)

        return evaluate

    setups = request_of(dp=8, micro_batch=1).setups
    taken = take_first_that_fits(setups, slower(2.5))
    assert not isinstance(taken, Infeasible)
    assert taken.evaluation.interval_90_s == (1.5, 2.5 * 1.25)
    assert taken.sentences == (
        "with recomputation selective (--recompute) it would take 25% longer: the interval is as much wider",
    )
    same = take_first_that_fits(setups, slower(2.05))
    assert not isinstance(same, Infeasible)
    assert (same.evaluation.interval_90_s, same.sentences) == ((1.5, 2.5), ())
    with pytest.raises(ValueError, match="no setups"):
        take_first_that_fits((), fake_evaluate)


def test_what_users_often_have_otherwise_widens_the_interval() -> None:
    def evaluate(setup: Setup) -> Evaluation:
        plain = fake_evaluate(setup)
        return plain if setup.recipe.software.kernels == "eager" else replace(plain, iteration_time_s=1.5)

    request = request_of(software="torchtitan", dp=8)
    taken = take_first_that_fits(request.setups[:1], evaluate)
    assert not isinstance(taken, Infeasible)
    wider = widened_by_habits(taken, (*request.often, "kernels=eager"), evaluate)
    assert wider.evaluation.interval_90_s == (1.5 * 0.75, 2.5)
    assert wider.sentences == (
        "with kernels=fused (--feature), as many run torchtitan, it would take 25% less: the interval is as much wider",
    )
    stated = request_of(software="torchtitan", dp=8, feature=("kernels=eager",))
    assert widened_by_habits(taken, stated.often, evaluate) == taken


def test_a_larger_micro_batch_that_fits_and_is_faster_lets_the_interval_reach_down() -> None:
    request = request_of("llama3-8b", "h100:1x8", dp=8, global_batch=128)
    usual = request.setups[0].samples_per_rank(request.setups[0].stages[0])

    def evaluate(setup: Setup) -> Evaluation:
        plain = fake_evaluate(setup)
        samples = setup.samples_per_rank(setup.stages[0])
        full = replace(plain.memory[0], activation_bytes=2 * plain.device_memory_bytes[0])
        memory = (full, *plain.memory[1:]) if samples > 2 * usual else plain.memory
        return replace(plain, iteration_time_s=2.0 - 0.25 * (samples / usual - 1), memory=memory)

    taken = take_first_that_fits(request.setups[:1], evaluate)
    assert not isinstance(taken, Infeasible)
    assert request.larger == tuple(samples for samples in range(usual + 1, 4 * usual + 1) if 16 % samples == 0)
    wider = widened_by_larger_batches(taken, request.larger, evaluate)
    assert wider.evaluation.interval_90_s == (1.5 * 0.875, 2.5)
    assert wider.sentences == (
        f"with a micro-batch of {2 * usual} (--micro-batch), which fits, it would take 12% less: the interval is as"
        " much wider",
    )
    assert (
        widened_by_larger_batches(taken, request_of("llama3-8b", "h100:1x8", dp=8, micro_batch=usual).larger, evaluate)
        == taken
    )
    assert widened_by_larger_batches(taken, request.larger, fake_evaluate) == taken
