"""PyTorch adapters: a function of tensors query, key and value becomes an implementation in a few lines."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import torch

from attention_conformance.implementations.adapters.native import Native, bound, indirect
from attention_conformance.implementations.adapters.native_torch import native_call
from attention_conformance.implementations.adapters.op_options import inputs_of, op_options, seeded
from attention_conformance.implementations.adapters.results import changing_with_copies, differing, output_of, result_of
from attention_conformance.implementations.adapters.tensors import (
    Tensors,
    forms,
    gradients_of,
    require_readable,
    second_products,
    tensors,
    to_array,
    to_tensor,
    watched,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Array, Problem

Answer = torch.Tensor | tuple[torch.Tensor, ...]
"""The output, or a tuple of output and extras in the order that `extras` names."""


@dataclass(frozen=True, eq=False)
class TorchOp:
    """A `run` for a function with the parameters of torch's scaled_dot_product_attention, or some of them.

    Only the options that a problem has are passed: attn_mask, key_padding_mask, is_causal=True, scale, and what
    `extra_options` names.

    Attributes:
        function: called as function(query, key, value, attn_mask=..., is_causal=..., scale=...).
        extras: what it returns after the output, by the names of `Result`.
        polarity: what True means in its boolean masks.
        implied: options that it is not given, because it always does what they state, such as `is_causal`.
        context: entered around each forward call, to choose a kernel for instance.
        reused: the tensors of the last call of the same shapes are filled anew and passed again, not new ones.
        twice: gradients are differentiated again, see `second_products`.
        of_log: gradients are those of the log-sum-exp too, times the cotangent's first component.
    """

    function: Callable[..., Answer]
    _: KW_ONLY
    extras: tuple[str, ...] = ()
    polarity: Polarity = Polarity.MAY_ATTEND
    implied: tuple[str, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    reused: bool = False
    twice: bool = False
    of_log: bool = False
    arena: Tensors = field(default_factory=dict, init=False)

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        given = tensors(problem, device)
        given = _refilled(self.arena, given) if self.reused and problem.cotangent is None else given
        # A backward pass that draws again draws from where the forward pass has left the generator.
        with seeded(problem), changing_with_copies(problem):
            with self.context(), torch.set_grad_enabled(problem.cotangent is not None):
                before = forms(given)
                answer = self.function(*inputs_of(given), **self._options(problem, given))
                disturbed = differing(before, forms(given))
            require_readable(output_of(answer), given)
            gradients, drawn = dict[str, Array](), tuple[str, ...]()
            if problem.cotangent is not None:
                slopes = partial(self._gradients, problem, given, answer)
                gradients, drawn = watched(slopes, problem)
            return result_of(answer, self.extras, to_array, gradients=gradients, disturbed=(*disturbed, *drawn))

    def native(self, problem: Problem, device: str) -> Native:
        """The function's own call; second derivatives, and those of the log-sum-exp, have none."""
        if self.twice or self.of_log:
            return indirect(self, problem, device)
        given = tensors(problem, device)
        forward = bound(self.function, *inputs_of(given), **self._options(problem, given))
        leaves = {name: given[name] for name in problem.needs}
        return native_call(forward, problem, given, leaves, self.context, self.extras)

    def _gradients(self, problem: Problem, given: Tensors, answer: Answer) -> dict[str, Array]:
        leaves, cotangent = {name: given[name] for name in problem.needs}, given["cotangent"]
        if self.of_log:
            log = answer[1 + self.extras.index("log_sum_exp")]
            if not log.requires_grad:
                raise ValueError("its log-sum-exp has no gradient")
            loss = (answer[0] * cotangent).sum() + (log * cotangent[..., 0]).sum()
            return gradients_of(loss, leaves, torch.ones_like(loss))
        if not self.twice:
            return gradients_of(output_of(answer), leaves, cotangent)
        directions = {name: to_tensor(array, str(cotangent.device)) for name, array in problem.direction().items()}
        return second_products(output_of(answer), leaves, directions, cotangent)

    def _options(self, problem: Problem, given: Tensors) -> dict[str, Any]:
        return op_options(problem, given, self.polarity, self.implied)


torch_op = TorchOp
"""The name by which adapters call it."""


def _refilled(arena: Tensors, given: Tensors) -> Tensors:
    """The stored tensors of these shapes and dtypes, filled with the numbers of the given ones."""
    stored = {}
    for name, tensor in given.items():
        stored[name] = arena.setdefault(f"{name} {tuple(tensor.shape)} {tensor.dtype}", tensor.clone())
        stored[name].copy_(tensor)
    return stored
