"""Calls of functions: the arrays that one works on, and its own names for the suite's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_op, library_of
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.results import kept
from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import PLAIN, AdapterRun, ClaimCheck
from attention_conformance.implementations.discovery.functions.stored_axes import permuted
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    Options,
    check_order,
    positional,
    read_options,
    required,
    takes_any,
)
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import KWARGS_OF_FUNCTION, KeysForm, MaskForm

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


def extents(claims: Claims) -> dict[str, int]:
    """Of the axes in the plain case, as near as the claims allow it."""
    fitted = fit(PLAIN, claims)
    sizes = PLAIN.sizes if isinstance(fitted, Unsupported) else fitted.sizes
    return {"B": sizes.batch, "H": sizes.num_heads, "Q": sizes.query_length, "K": sizes.key_length}


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
        bias_form: that in which it takes added numbers, where these have a parameter of their own; None: the same.
        true_as: the number, next to 0 for False, as which True is given in its boolean masks; 0: they are booleans.
        integers: whether they are given as integers.
        unmasked: what fills the mask that it has to be given where a problem has none; None: it takes None.
        unmasked_keys: whether that mask is one of keys, (B, Lk), and not (Lq, Lk).
        keys_form: the shape in which it takes masks of keys.
        hides_padding: whether True in its mask of keys means the opposite of True in its other masks.
        held_as: the attribute of an object in which it reads its mask; empty: it takes the array.
    """

    function: Callable[..., object]
    options: Options
    form: MaskForm = MaskForm.GIVEN
    bias_form: MaskForm | None = None
    true_as: float = 0.0
    integers: bool = False
    unmasked: bool | float | None = None
    unmasked_keys: bool = False
    keys_form: KeysForm = KeysForm.SAMPLES
    hides_padding: bool = False
    held_as: str = ""

    def __call__(self, *inputs: Any, **options: Any) -> object:
        """The function's answer."""
        call = self.bound_call(*inputs, **options)
        own = {name: self._own_mask(name, options) for name in ("attn_mask", "key_padding_mask") if name in options}
        arrays = {name: call.keywords[mask] for name, mask in own.items() if mask in call.keywords}
        with kept({name: getattr(each, self.held_as, each) if self.held_as else each for name, each in arrays.items()}):
            return call()

    def _own_mask(self, name: str, options: Mapping[str, Any]) -> str:
        """Its own name for one of these masks."""
        kinds = ("bool_mask", "float_mask") if "bool" in str(options[name].dtype) else ("float_mask", "bool_mask")
        wanted = kinds if name == "attn_mask" else (name,)
        return next((self.options.spelled[each] for each in wanted if each in self.options.spelled), "")

    def bound_call(self, *inputs: Any, **options: Any) -> partial[object]:
        """The same call, prepared."""
        if "attn_mask" in options:
            options["attn_mask"] = self._formed(options["attn_mask"], (*inputs[0].shape[:3], inputs[1].shape[2]))
        if (keys := options.get("key_padding_mask")) is not None:
            keys = ~keys if self.hides_padding else keys
            options["key_padding_mask"] = self._formed_keys(keys)
        given = self.options.completed(self.options.renamed(options), inputs[0])
        if self.true_as:
            spelled = self.options.spelled
            masks = {spelled[o] for o in ("bool_mask", "key_padding_mask") if o in spelled} & set(given)
            given |= {name: _as_numbers(given[name], inputs[0], self.true_as) for name in masks}
        if self.integers:
            given |= {n: _as_integers(mask) for n, mask in given.items() if "bool" in str(getattr(mask, "dtype", ""))}
        own = self.mask_name
        if self.unmasked is not None and own and given.get(own) is None:
            rows = inputs[0].shape[0 if self.unmasked_keys else -2]
            given[own] = _filled(inputs[0], (rows, inputs[1].shape[-2]), self.unmasked)
        if self.held_as and given.get(own) is not None:
            given[own] = SimpleNamespace(**{self.held_as: given[own]})
        return partial(self._called, *inputs, **given)

    @property
    def _called(self) -> Callable[..., object]:
        """The function; one in another layout knows which of its masks is one of keys."""
        own = self.options.spelled.get("key_padding_mask")
        known = own is None or not hasattr(self.function, "key_mask")
        return self.function if known else replace(self.function, key_mask=own)  # type: ignore[type-var]

    @property
    def mask_name(self) -> str:
        """Its own name for a mask of queries and keys, for a bias alone, or for a mask of keys; empty for none."""
        spelled = self.options.spelled
        return next((spelled[each] for each in ("bool_mask", "float_mask", "key_padding_mask") if each in spelled), "")

    def _formed(self, mask: Any, shape: tuple[int, ...]) -> Any:
        own = self.bias_form if self.bias_form is not None and "bool" not in str(mask.dtype) else self.form
        if own is MaskForm.GIVEN or (own is MaskForm.NO_HEADS and mask.ndim > 2 and mask.shape[-3] > 1):
            return mask
        if own is MaskForm.WHOLE_KEYS:
            shape = (*mask.shape[:-1], shape[-1])
        whole = mask.expand(shape) if hasattr(mask, "expand") else library_of(mask).broadcast_to(mask, shape)
        of_samples = dict.fromkeys((MaskForm.SAMPLE, MaskForm.NO_HEADS), whole[:, 0])
        if own is MaskForm.LENGTHS_FIRST:
            return permuted(whole[:, 0], "BQK", "QKB")
        if own in (MaskForm.FLAT, MaskForm.EITHER):
            shares = own is MaskForm.EITHER and all(extent == 1 for extent in mask.shape[:-2])
            return whole[0, 0] if shares else whole.reshape((-1, *shape[2:]))
        parts = {MaskForm.SHARED: whole[0, 0], MaskForm.HEADS: whole[0], MaskForm.ONE_HEAD: whole[:, :1]} | of_samples
        return parts.get(own, whole)

    def _formed_keys(self, mask: Any) -> Any:
        if self.keys_form is KeysForm.LENGTHS_FIRST:
            return permuted(mask, "BK", "KB")
        return mask[:, None] if self.keys_form is KeysForm.PER_HEAD else mask

    def giving(self, options: Mapping[str, object]) -> RenamedCall:
        """The same with these given in each call, by its own names, in addition to what always is."""
        return replace(self, options=replace(self.options, always={**self.options.always, **options}))

    def with_defaults(self) -> RenamedCall:
        """The same with its defaults given in each call."""
        return replace(self, options=self.options.with_defaults())


def _filled(query: Any, shape: tuple[int, int], value: bool | float) -> Any:
    """A mask of one value, a boolean or a number of the type of the query."""
    if hasattr(query, "new_full"):
        made = query.new_full(shape, float(value))
        return made.bool() if isinstance(value, bool) else made
    return library_of(query).full(shape, value, bool if isinstance(value, bool) else query.dtype)


def _as_numbers(mask: Any, like: Any, true_as: float) -> Any:
    """A boolean mask as 0 and this number; any other as it is."""
    if "bool" not in str(getattr(mask, "dtype", "")):
        return mask
    if hasattr(mask, "masked_fill"):
        return mask.new_zeros(mask.shape, dtype=like.dtype).masked_fill(mask, true_as)
    return library_of(mask).where(mask, true_as, 0.0).astype(like.dtype)


def _as_integers(mask: Any) -> Any:
    """A boolean mask as integers 0 and 1, of torch's or NumPy's usual type."""
    return mask.long() if hasattr(mask, "long") else mask.astype(int)


def options_of(signature: inspect.Signature) -> Options:
    """What a function takes after query, key and value.

    Raises:
        TargetError: it is a method, takes other inputs, or needs something that is not known.
    """
    inputs = positional(signature)[:3]
    if inputs and inputs[0].name in ("self", "cls"):
        raise TargetError(f"it is a method of a class: give a function or a bound method, {ADAPTER}")
    check_order(inputs)
    if len(inputs) < 3 and not takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        names = ", ".join(p.name for p in inputs)
        raise TargetError(f"it takes ({names}) by position: let it take query, key, value, {ADAPTER}")
    return read_options(signature, inputs, KWARGS_OF_FUNCTION)


def scale_given(signature: inspect.Signature, options: Options) -> list[str]:
    """A note where the usual scale is given in each call, as another number is the default."""
    name = options.spelled.get("scale", "")
    parameter = signature.parameters.get(name)
    if parameter is None or name not in options.always or required(parameter):
        return []
    return [f"given 1 / sqrt(d_k) as {name!r} where a problem has no scale, and not {parameter.default}"]
