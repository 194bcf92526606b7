"""Numbers and widths of heads that a module refuses by a statement of its own: its limit, as in a function.

A part of each head that is rotated may be larger than all of a small one, which raises anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import torch

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.safe_call import repeatable
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.rotated_parts import rotates_a_part
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case

TRIED = ((1, 1), (1, 2), (2, 3), (3, 5), (4, 7), (5, 2))
"""Numbers of heads and their widths."""
MORE_WIDTHS, MORE_HEADS = 64, 4
"""So many widths, and so many larger numbers of heads, are tried, from those of a case on."""


@dataclass(frozen=True)
class HeadSizes:
    """The fit of a module that takes some sizes only; see `Claims.fit`.

    Attributes:
        own: a fit that comes first.
        make, call: how the module is built and called.
        seen: the refusal, or an empty text, by number of heads and width of one.
    """

    own: Fit
    make: Constructor
    call: ModuleCall
    seen: dict[tuple[int, int], str] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, case: Case) -> Case | Unsupported:
        """The case with the next width of heads that is not refused, or else with the next number of them."""
        fitted = self.own(case)
        if isinstance(fitted, Unsupported):
            return fitted
        heads, least = fitted.sizes.num_heads, fitted.sizes.d_k
        for number, width in product(self._numbers(fitted), range(least, least + MORE_WIDTHS)):
            sized = fitted.sized(d_k=width, d_v=width if fitted.sizes.d_v == least else fitted.sizes.d_v)
            wider = self.own(sized if number == heads else sized.sized(num_heads=number))
            if isinstance(wider, Case) and wider.sizes.d_k == width and not self.refusal(number, width):
                return wider
        return Unsupported(f"refuses {heads} heads: {self.refusal(heads, least)}")

    def _numbers(self, case: Case) -> range:
        """The numbers of heads that may be tried: its own alone where fewer heads of keys are shared."""
        heads = case.sizes.num_heads
        return range(heads, heads + 1 + (MORE_HEADS if heads > 1 and not case.sizes.num_kv_heads else 0))

    def refusal(self, heads: int, width: int) -> str:
        """The exception that a statement of its own raises as it is built or called; empty if none does.

        Any exception where a part of each head is rotated, which may be wider than all of it.
        """
        if (heads, width) not in self.seen:
            with torch.random.fork_rng(devices=[]):
                outcome = repeatable(partial(self._output, heads, heads * width))
            refused = outcome.refused or rotates_a_part(self.make.kind)
            self.seen[heads, width] = outcome.error if refused else ""
        return self.seen[heads, width]

    def _output(self, heads: int, width: int) -> torch.Tensor:
        return self.call.plain(self.make(width, heads), [torch.zeros(2, self.make.tokens, width)] * 3, heads)


def with_head_sizes(make: Constructor, call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with a fit to the sizes that the module does not refuse, and a note if there are others."""
    if make.one_head or make.kv_heads:
        return check, []
    limits = HeadSizes(check.claims.fit, make, call)
    error = next(filter(None, (limits.refusal(heads, width) for heads, width in TRIED)), "")
    if not error:
        return check, []
    claims = replace(check.claims, fit=limits)
    return replace(check, claims=claims), [unclaimed("other numbers or widths of heads", error)]
