"""Calls of functions: the arrays that one works on, and its own names for the suite's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_op
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.discovery.claim_checks import AdapterRun, ClaimCheck
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.vocabulary import MaskForm

if TYPE_CHECKING:
    from attention_conformance.implementations.adapters.modes import Modes


@dataclass(frozen=True)
class ArrayKind:
    """The arrays that a function works on.

    Attributes:
        arrays: in words, for messages.
        maker: makes a `run` of such a function.
        is_kind: whether an answer is such an array.
        alternatives: more keywords of the maker, by the name of the alternative.
        exact_dtype: see `core_claims`.
        modes: makes the modes of such a function, such as `op_modes`, where it can be put through any.
    """

    arrays: str
    maker: Callable[..., AdapterRun]
    is_kind: Callable[[object], bool]
    alternatives: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    exact_dtype: bool = True
    modes: Callable[..., Modes] | None = None

    def check(self, function: Callable[..., object], claims: Claims, device: str, dtype: str) -> ClaimCheck:
        """A way to call the function."""
        return ClaimCheck(function, partial(self.maker, polarity=claims.conventions.bool_mask), claims, device, dtype)


NUMPY = ArrayKind(
    "NumPy arrays",
    numpy_op,
    lambda answer: isinstance(answer, np.ndarray),
    {"with read-only arrays": {"read_only": True}},
)
JAX = ArrayKind("JAX arrays", jax_op, is_jax)


@cache
def tensors_kind() -> ArrayKind:
    """Torch's, where it is installed."""
    import torch

    from attention_conformance.implementations.adapters.modes import op_modes
    from attention_conformance.implementations.adapters.torch_op import torch_op

    return ArrayKind(
        "torch tensors",
        torch_op,
        lambda answer: isinstance(answer, torch.Tensor),
        {"in inference mode": {"context": torch.inference_mode}, "in tensors that were used before": {"reused": True}},
        exact_dtype=False,
        modes=op_modes,
    )


@dataclass(frozen=True)
class RenamedCall:
    """The function under the names that the suite gives its options.

    Attributes:
        function: what is called.
        options: its parameters that are no inputs.
        form: the shape in which it takes attention masks.
        numeric: whether its boolean masks are given as numbers, 1 for True.
        integers: whether they are given as integers.
        unmasked: what fills the mask (Lq, Lk) that it has to be given where a problem has none; None: it takes None.
    """

    function: Callable[..., object]
    options: Options
    form: MaskForm = MaskForm.GIVEN
    numeric: bool = False
    integers: bool = False
    unmasked: bool | float | None = None

    def __call__(self, *inputs: Any, **options: Any) -> object:
        """The function's answer."""
        return self.bound_call(*inputs, **options)()

    def bound_call(self, *inputs: Any, **options: Any) -> Callable[[], Any]:
        """The same call, prepared."""
        if self.form is not MaskForm.GIVEN and "attn_mask" in options:
            options["attn_mask"] = self._formed(options["attn_mask"], (*inputs[0].shape[:3], inputs[1].shape[2]))
        given = self.options.completed(self.options.renamed(options), inputs[0])
        if self.numeric:
            masks = {"bool_mask", "key_padding_mask"} & set(self.options.spelled)
            given |= {n: _as_numbers(given[n], inputs[0]) for n in map(self.options.spelled.get, masks) if n in given}
        if self.integers:
            given |= {n: _as_integers(mask) for n, mask in given.items() if "bool" in str(getattr(mask, "dtype", ""))}
        own = self.mask_name
        if self.unmasked is not None and own and given.get(own) is None:
            given[own] = _filled(inputs[0], inputs[1], self.unmasked)
        return partial(self.function, *inputs, **given)

    @property
    def mask_name(self) -> str:
        """Its own name for a mask of queries and keys, or for a bias alone; empty for none."""
        return self.options.spelled.get("bool_mask") or self.options.spelled.get("float_mask", "")

    def _formed(self, mask: Any, shape: tuple[int, ...]) -> Any:
        whole = mask.expand(shape) if hasattr(mask, "expand") else np.broadcast_to(mask, shape)
        return whole[:, 0] if self.form is MaskForm.SAMPLE else whole[0, 0]

    def with_defaults(self) -> RenamedCall:
        """The same with its defaults given in each call."""
        return replace(self, options=self.options.with_defaults())


def _filled(query: Any, key: Any, value: bool | float) -> Any:
    """A mask (Lq, Lk) of one value, a boolean or a number of the type of the query."""
    shape = (query.shape[-2], key.shape[-2])
    if hasattr(query, "new_full"):
        made = query.new_full(shape, float(value))
        return made.bool() if isinstance(value, bool) else made
    return np.full(shape, value, bool if isinstance(value, bool) else query.dtype)


def _as_numbers(mask: Any, like: Any) -> Any:
    """A boolean mask as 0 and 1; any other as it is."""
    if "bool" not in str(getattr(mask, "dtype", "")):
        return mask
    return mask.to(like.dtype) if hasattr(mask, "to") else mask.astype(like.dtype)


def _as_integers(mask: Any) -> Any:
    """A boolean mask as integers 0 and 1, of torch's or NumPy's usual type."""
    return mask.long() if hasattr(mask, "long") else mask.astype(int)
