"""The dense feed-forward inside the parallel region."""

from __future__ import annotations

from torch import Tensor, nn

from models_zoo.layers import FeedForward
from models_zoo.torch_layers.basic import Linear, activate
from models_zoo.torch_layers.parallel import Region


class DenseFeedForward(nn.Module):  # type: ignore[misc]
    """Columns of the first matrix (or two) and rows of the last: (b, s, hidden) to a partial (b, s, hidden).

    The last bias is the caller's to add once the partial results are summed, unless this rank is alone.
    """

    def __init__(self, spec: FeedForward, hidden: int, region: Region) -> None:
        super().__init__()
        inner = region.share(spec.hidden, "feed-forward columns")
        alone = region.tp.degree == 1
        self.activation = spec.activation
        self.gate = Linear(hidden, inner, dtype=region.dtype, bias=spec.bias) if spec.gated else None
        self.up = Linear(hidden, inner, dtype=region.dtype, bias=spec.bias)
        self.down = Linear(inner, hidden, dtype=region.dtype, bias=spec.bias and alone)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(activate(self.activation, self.up(x)))
        return self.down(activate(self.activation, self.gate(x)) * self.up(x))
