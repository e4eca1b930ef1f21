"""What an optimizer keeps for each parameter it updates, moves in a step, and computes beyond reading and writing."""

from __future__ import annotations

from estimator.pricing.recipe import GradDType, OptimizerName
from profiles.records import dataclass
from profiles.vocabulary import DType, held_bytes

GRAD_WIDTH: dict[GradDType, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a gradient element by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """One optimizer.

    `matrix_state_bytes` per parameter of a matrix, `other_state_bytes` of all others (biases, norms; for Muon also
    embedding and head, which run AdamW), both beside the fp32 masters of 16-bit weights and as kept with those; without
    masters the states are as wide as the weights where `states_follow_weights`. `extra_passes` are reads and writes of
    fp32 tensors that the update makes on top. `orthogonal_iterations` of Newton-Schulz on each matrix.
    """

    name: OptimizerName
    matrix_state_bytes: float
    other_state_bytes: float
    states_follow_weights: bool
    source: str
    extra_passes: float = 0.0
    orthogonal_iterations: int = 0

    def state_bytes(
        self, dtype: DType, *, masters: bool = True, matrices: bool = True, narrow_moments: bool = False
    ) -> float:
        """Bytes per parameter that the optimizer keeps, the fp32 masters of 16-bit weights included; moments in 16
        bits where `narrow_moments`.

        `masters` False: it works on the weights themselves, as fp32 training and pure 16-bit training do.
        """
        width = held_bytes(dtype)
        states = self.matrix_state_bytes if matrices else self.other_state_bytes
        if narrow_moments and self.states_follow_weights:
            states /= 2
        if width == 4:
            return states
        if masters:
            return states + 4
        return states * width / 4 if self.states_follow_weights and not narrow_moments else states

    def step_bytes(
        self,
        dtype: DType,
        grad_dtype: GradDType,
        *,
        masters: bool = True,
        matrices: bool = True,
        narrow_moments: bool = False,
    ) -> float:
        """Memory traffic of a step per parameter: the gradient read, weight (master) and states read and written, the
        16-bit weight written where there is a master, and `extra_passes` over fp32 tensors."""
        width = held_bytes(dtype)
        own = masters and width < 4
        weight = 2 * (4 if own else width) + (width if own else 0)
        states = self.state_bytes(dtype, masters=masters, matrices=matrices, narrow_moments=narrow_moments)
        states -= 4 if own else 0
        return GRAD_WIDTH[grad_dtype] + weight + 2 * states + 4 * self.extra_passes

    def step_flops(self, rows: int, columns: int) -> int:
        """FLOPs of a step on a (rows, columns) matrix beyond what its memory traffic covers.

        Newton-Schulz on X of (n, k), n <= k (Jordan 2024, "Muon", quintic iteration): A = X X^T, B = b A + c A A,
        X = a X + B X, so 2 n^2 k + 2 n^3 + 2 n^2 k an iteration.

        >>> OPTIMIZERS["muon"].step_flops(2, 4)
        400
        """
        n, k = min(rows, columns), max(rows, columns)
        return self.orthogonal_iterations * (4 * n * n * k + 2 * n**3)


OPTIMIZERS: dict[OptimizerName, OptimizerSpec] = {
    "adamw": OptimizerSpec(
        name="adamw",
        matrix_state_bytes=8,
        other_state_bytes=8,
        states_follow_weights=True,
        source="Loshchilov and Hutter 2019: two fp32 moments (Rajbhandari et al. 2020, section 3.1: 12 with masters)",
    ),
    "sgd": OptimizerSpec(
        name="sgd",
        matrix_state_bytes=4,
        other_state_bytes=4,
        states_follow_weights=True,
        source="one momentum",
    ),
    "adam8bit": OptimizerSpec(
        name="adam8bit",
        matrix_state_bytes=2 + 2 * 4 / 256,
        other_state_bytes=8,
        states_follow_weights=False,
        source="Dettmers et al. 2022: two moments of a byte each, one fp32 scale for a block of 256 (bitsandbytes'"
        " block size); tensors below 4,096 elements, as norms and biases are, keep fp32 moments",
    ),
    "muon": OptimizerSpec(
        name="muon",
        matrix_state_bytes=4,
        other_state_bytes=8,
        states_follow_weights=True,
        # Momentum applied, the update cast to bf16 and normalised, and added with its scale.
        extra_passes=2.0,
        orthogonal_iterations=5,
        source="Jordan 2024: one momentum and 5 Newton-Schulz iterations for matrices, AdamW for the rest",
    ),
    "adafactor": OptimizerSpec(
        name="adafactor",
        # A row and a column of fp32 for each matrix: some thousandths of a byte per parameter.
        matrix_state_bytes=0,
        other_state_bytes=4,
        states_follow_weights=False,
        # Squared gradient's means, the scaled update, its root mean square, and the clipped update.
        extra_passes=6.0,
        source="Shazeer and Stern 2018: factored second moment, no first moment",
    ),
}
