"""Functions as candidates: anything that is called with query, key and value, tensors or NumPy arrays."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_op
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, any_case
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.discovery.option_detection import (
    SWALLOWED,
    one_set_of_ids,
    option_claims,
    with_observed,
)
from attention_conformance.implementations.discovery.probing import (
    BIASED,
    CAUSAL,
    MASKED,
    PLAIN,
    Extras,
    Probe,
    Run,
    Trial,
    alike,
    check_answer,
    find_extras,
    no_gradients,
    settle,
)
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    BY_OPTION,
    SWALLOWED_BY_FUNCTIONS,
    Options,
    check_order,
    positional,
    read_options,
    signature_of,
    takes_any,
)
from attention_conformance.spec.cases import Pattern
from attention_conformance.spec.features import CausalWithMask, Conventions, Feature, Scope


@dataclass(frozen=True)
class Kind:
    """The arrays that a function works on.

    Attributes:
        arrays: in words.
        adapter: makes a `run` of such a function.
        holds: whether an answer is such an array.
        ways: further keywords of the adapter, by the name of the way to call.
        in_kind: whether a half type counts only if the answer comes in it: NumPy widens in silence.
    """

    arrays: str
    adapter: Callable[..., Run]
    holds: Callable[[object], bool]
    alternatives: Mapping[str, Mapping[str, Any]]
    in_kind: bool = True

    def probe(self, function: Callable[..., object], claims: Claims, device: str) -> Probe:
        """A way to call the function."""
        polarity = claims.conventions.bool_mask
        return Probe(function, lambda called: self.adapter(called, polarity=polarity), claims, device)


TORCH = Kind(
    "torch tensors",
    torch_op,
    lambda answer: isinstance(answer, torch.Tensor),
    {"in inference mode": {"context": torch.inference_mode}, "in tensors that were used before": {"reused": True}},
    in_kind=False,
)
NUMPY = Kind(
    "NumPy arrays",
    numpy_op,
    lambda answer: isinstance(answer, np.ndarray),
    {"with read-only arrays": {"read_only": True}},
)
JAX = Kind("JAX arrays", jax_op, is_jax, {})

ARRAYS_LACK = "'numpy.ndarray' object has no attribute"
"""The error of a function that is not meant for arrays; what it raised for tensors says more."""

ALWAYS = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.VALUE_WIDTH,
        Feature.GRADIENTS,
        Feature.VIEWS,
        Feature.EMPTY_SIZES,
        Feature.ALTERNATIVES,
    }
)
"""What every function of query, key and value is taken to offer, unless a call shows that it does not."""


def function_candidate(
    name: str, function: Callable[..., object], settings: Mapping[str, str], device: str
) -> Implementation:
    """Wraps a function with the parameters of torch's scaled_dot_product_attention, or a subset of them.

    The first three parameters are query, key and value. `attn_mask` may also be called `mask` or
    `attention_mask`, a float mask `attn_bias` or `bias`, and `is_causal` `causal`. `key_padding_mask`,
    of shape (B, Lk), is taken besides, and so is what lies beyond the core, by the names in `OPTIONS` and in the
    form that `extra_options` tells.

    Raises:
        TargetError: its parameters or its answer are none of a function of query, key and value.
        ValueError: a setting that does not exist.
    """
    conventions = Conventions(causal_with_mask=CausalWithMask.EITHER).claiming(settings)
    options = _options(signature_of(function))
    fits = one_set_of_ids if options.for_both("query_segments") else any_case
    claims = Claims(Scope.OP, ALWAYS | options.features | {Feature.GROUPED}, conventions, fit=fits)
    probe, kind, plain = _suited(Called(function, options), claims, device)
    check_answer(plain, kind.holds, "a tensor" if kind is TORCH else "an array")
    probe, unheard = _narrowed(probe, options)
    probe, refuted = option_claims(probe, options.named)
    extras = find_extras(plain, Scope.OP)
    if "returned-weights" not in settings:
        probe = with_observed(probe, extras)
    made = _settled(name, probe, kind, extras, Called(function, options.spelled_out()))
    return replace(made, about="; ".join([made.about, *options.notes, *unheard, *refuted]))


@dataclass(frozen=True)
class Called:
    """The function under the names that the suite gives its options."""

    function: Callable[..., object]
    options: Options

    def __call__(self, *inputs: Any, **asked: Any) -> object:
        """The function's answer."""
        return self.function(*inputs, **self.options.renamed(asked))

    def bound_call(self, *inputs: Any, **asked: Any) -> Callable[[], Any]:
        """The same, made ready."""
        return partial(self.function, *inputs, **self.options.renamed(asked))


def _narrowed(probe: Probe, options: Options) -> tuple[Probe, list[str]]:
    """The probe without the options that nothing heeds, and a note on each."""
    why = dict.fromkeys(_unheard(probe, options), SWALLOWED)
    if _reads_booleans_only(probe, options):
        why.setdefault("float_mask", f"zeros in its {options.spelled['float_mask']!r} mask keys, so that it is boolean")
    lost = {feature: told for option, told in why.items() for feature in BY_OPTION[option]}
    notes = [f"{f} not claimed: {lost[f]}" for f in sorted(lost) if f in probe.claims]
    return replace(probe, claims=replace(probe.claims, features=probe.claims.features - set(lost))), notes


def _unheard(probe: Probe, options: Options) -> list[str]:
    asked = {"bool_mask": MASKED, "float_mask": BIASED, "is_causal": CAUSAL, "scale": replace(PLAIN, scale=0.3)}
    return [option for option in sorted(options.swallowed & set(asked)) if probe.ignores(asked[option])]


def _reads_booleans_only(probe: Probe, options: Options) -> bool:
    """Whether a `mask` of zeros masks: by that name, many functions mean booleans only."""
    spelled = options.spelled.get("float_mask")
    if spelled not in ("mask", "attention_mask") or probe.ask(PLAIN).error:
        return False
    zeros = probe.ask(replace(BIASED, pattern=Pattern.ALL))
    return bool(zeros.error) or not alike(zeros, probe.ask(PLAIN))


def _settled(name: str, probe: Probe, kind: Kind, extras: Extras, spelled: Callable[..., object]) -> Implementation:
    """The implementation that a few calls leave; `spelled` calls it with its defaults given."""
    claims, notes = settle(probe, kind.in_kind)
    made: Callable[..., Run] = partial(kind.adapter, extras=extras.names, polarity=claims.conventions.bool_mask)
    chosen = extras.choosing(probe.function)
    alternatives = {"with its defaults spelled out": made(extras.choosing(spelled))}
    alternatives |= {way: made(chosen, **keywords) for way, keywords in kind.alternatives.items()}
    about = "; ".join([f"a function of {kind.arrays}", *extras.notes, *notes])
    return Implementation(
        name, extras.claimed(claims, bool(alternatives)), made(chosen), about, alternatives=alternatives
    )


def _options(signature: inspect.Signature) -> Options:
    inputs = positional(signature)[:3]
    if inputs and inputs[0].name in ("self", "cls"):
        raise TargetError(f"it is a method of a class: give a function or a bound method, {ADAPTER}")
    check_order(inputs)
    if len(inputs) < 3 and not takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        names = ", ".join(p.name for p in inputs)
        raise TargetError(f"it takes ({names}) by position: let it take query, key, value, {ADAPTER}")
    return read_options(signature, inputs, SWALLOWED_BY_FUNCTIONS)


def _suited(function: Callable[..., object], claims: Claims, device: str) -> tuple[Probe, Kind, Trial]:
    """Whether it works on tensors or on arrays: on whichever more of its calls answer in kind; else perhaps on JAX's.

    NumPy functions take tensors for arrays a good way, and break or change the type halfway; gradients they
    have never.
    """
    without = replace(claims, features=claims.features - {Feature.GRADIENTS, Feature.MASK_GRADIENT})
    given, arrays = TORCH.probe(function, claims, device), NUMPY.probe(function, without, device)
    masks = [(Feature.BOOL_MASK, MASKED), (Feature.FLOAT_MASK, BIASED)]
    cases = [PLAIN, *(case for feature, case in masks if feature in claims)]
    on_tensors, on_arrays = ([probe.ask(case) for case in cases] for probe in (given, arrays))
    tensors, plain_arrays = _in_kind(on_tensors, TORCH), _in_kind(on_arrays, NUMPY)
    if plain_arrays >= max(1, tensors + (not no_gradients(given))):
        return arrays, NUMPY, on_arrays[0]
    if not tensors and "jax" in sys.modules:
        jax = JAX.probe(function, claims, device)
        if _in_kind([plain := jax.ask(PLAIN)], JAX):
            return jax, JAX, plain
    return given, TORCH, _answered(on_tensors[0], on_arrays[0])


def _answered(on_tensors: Trial, on_arrays: Trial) -> Trial:
    if on_tensors.error and on_arrays.error:
        both = {on_tensors.error: TORCH.arrays, on_arrays.error: NUMPY.arrays}
        if len(both) == 1 or ARRAYS_LACK in on_arrays.error:
            told = on_tensors.error
        else:
            told = "; ".join(f"{error} ({arrays})" for error, arrays in both.items())
        raise TargetError(f"it cannot be called with query, key and value of shape (B, H, L, d): {told}")
    return on_arrays if on_tensors.error else on_tensors


def _in_kind(trials: list[Trial], kind: Kind) -> int:
    """How many answers are of the kind; none count if the first, the plain one, is not."""
    fits = [bool(trial.parts) and kind.holds(trial.parts[0]) for trial in trials]
    return sum(fits) if fits[0] else 0
