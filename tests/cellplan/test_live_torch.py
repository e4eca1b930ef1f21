"""Live torch modules and JAX functions: traced as a factory's are, and left as they were."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import cellplan
from profiles.limits import LIMITS
from tests import traced_functions, traced_modules

torch = pytest.importorskip("torch")
ASKED: dict[str, Any] = {"cluster": "h100:1x2", "global_batch": 8}


def test_a_live_module_is_that_of_its_factory_and_stays_as_it_is() -> None:
    module, inputs = traced_modules.mlp()
    module.eval()
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    live = cellplan.estimate(module, inputs=inputs, dp=2, **ASKED)
    of_factory = cellplan.estimate("tests.traced_modules:mlp", dp=2, **ASKED)
    assert live.plan.estimate == of_factory.plan.estimate
    assert torch.equal(torch.get_rng_state(), state)
    assert not module.training
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    assert live.plan.model.reference.startswith("module:Sequential@")


def test_equal_modules_have_one_name_and_others_another() -> None:
    first, again = (cellplan.estimate(traced_modules.mlp(), dp=2, **ASKED).plan.model.name for _ in range(2))
    wider = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    other = cellplan.estimate((wider, (torch.zeros(1, 16),)), dp=2, **ASKED).plan.model.name
    assert first == again != other


def test_a_live_plan_is_found_in_this_process_alone(tmp_path: Any) -> None:
    best = cellplan.plan(traced_modules.mlp(), **ASKED)
    assert best.timeline().timeline.model == best.plan.model.name
    text = best.save(tmp_path / "plan.json").read_text(encoding="utf-8")
    (tmp_path / "other.json").write_text(text.replace("@", "@0"), encoding="utf-8")
    with pytest.raises(cellplan.InputError, match=r"model\.reference"):
        cellplan.load_plan(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (torch.nn.Linear(4, 4), None, "inputs=..."),
        (torch.nn.Linear(4, 4), 3, "a tuple of tensors"),
        (torch.nn.Linear(4, 4), torch.zeros(2, 5), "trains on its example inputs"),
    ],
)
def test_what_cannot_be_traced_is_said(model: Any, inputs: Any, message: str) -> None:
    with pytest.raises(cellplan.InputError, match=message):
        cellplan.estimate(model, inputs=inputs, **ASKED)


def leave(_module: Any, inputs: Any) -> None:
    raise SystemExit(f"after {len(inputs)}")


def test_a_module_that_leaves_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Linear(4, 4)
    module.register_forward_pre_hook(leave)
    with pytest.raises(cellplan.InputError, match="SystemExit: after 1"):
        cellplan.estimate(module, inputs=torch.zeros(2, 4), **ASKED)
    with pytest.raises(cellplan.InputError, match="same reduction dim"):
        cellplan.estimate(torch.nn.Linear(4, 4), inputs=torch.zeros(2, 5), **ASKED)
    assert "Traceback" not in capsys.readouterr().err


def test_a_module_without_end_is_not_traced() -> None:
    many = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(LIMITS.modules.most)])
    with pytest.raises(cellplan.InputError, match="20,001 modules in a module, expected at most 20,000"):
        cellplan.estimate(many, inputs=torch.zeros(2, 4), **ASKED)


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = torch.nn.Linear(4, 4)
    module.lock = threading.Lock()
    with pytest.raises(cellplan.InputError, match="can be copied"):
        cellplan.estimate(module, inputs=torch.zeros(2, 4), **ASKED)


def test_a_live_function_is_that_of_its_factory() -> None:
    pytest.importorskip("jax")
    function, params, inputs = traced_functions.mlp()[:3]
    live = cellplan.estimate(function, params=params, inputs=inputs, dp=2, **ASKED)
    of_factory = cellplan.estimate("tests.traced_functions:mlp", dp=2, **ASKED)
    assert live.plan.estimate == of_factory.plan.estimate
