"""Dropout that a function takes as a layer, as a rate under a name of its own, or next to a mode of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.global_state import numpy_seeded, torch_seeded
from attention_conformance.implementations.api.safe_call import CallOutcome, safe_call
from attention_conformance.implementations.discovery.functions.generators import (
    MAKERS,
    Maker,
    drawn,
    generator_in,
)
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.probe import first_part
from attention_conformance.implementations.discovery.signatures import required, signature_of, unfelt_like
from attention_conformance.implementations.discovery.vocabulary import unfelt
from attention_conformance.spec.optional import optional

torch = optional("torch")
RATE = 0.5
SIZE = (2, 3, 16, 4)
"""In each layout such inputs have several samples, heads and tokens, and so many weights that some are dropped."""
OF_EVALUATION = ("deterministic", "inference", "is_inference", "evaluation", "eval", "eval_mode", "is_eval")
MODES = {
    **dict.fromkeys(("training", "train", "is_training", "is_train", "train_mode"), True),
    **dict.fromkeys(OF_EVALUATION, False),
}
"""Names of flags of a mode, with what they are in training."""


@dataclass(frozen=True)
class DropoutForm:
    """A function as one of `dropout_p`, and of `training` where it has a mode or takes a layer, which has one.

    Attributes:
        function: it.
        own: its parameter.
        layer: whether that is given a layer, and not its rate.
        mode: its own flag of a mode; empty for none.
        generator: its parameter for a generator of random numbers; empty for none.
        maker: makes one of a seed.
    """

    function: Callable[..., Any]
    own: str
    layer: bool
    mode: str
    generator: str = ""
    maker: Maker | None = None

    @property
    def __signature__(self) -> inspect.Signature:
        every = signature_of(self.function).parameters.values()
        parameters = [self._renamed(each) for each in every if each.name != self.generator]
        if self.mode or not self.layer:
            return inspect.Signature(parameters)
        mode = inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=True)
        at = len(parameters) - sum(p.kind is p.VAR_KEYWORD for p in parameters)
        return inspect.Signature([*parameters[:at], mode, *parameters[at:]])

    def _renamed(self, parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.name == self.own:
            return parameter.replace(name="dropout_p", default=0.0)
        return parameter.replace(name="training") if parameter.name == self.mode else parameter

    @property
    def about(self) -> str:
        """For a note."""
        rate = f"its {self.own!r} is given {'a layer of dropout' if self.layer else 'the rate of dropout'}"
        rate += f", and its {self.generator!r} a generator of each call" if self.generator else ""
        plain = self.mode in ("", "training")
        return rate if plain else f"{rate}, and its {self.mode!r} is {MODES[self.mode]} in training"

    def __call__(self, *inputs: Any, dropout_p: float = 0.0, training: bool = True, **options: Any) -> Any:
        """The function's answer."""
        if self.mode:
            options[self.mode] = training is MODES[self.mode]
        if self.maker is not None:
            options[self.generator] = drawn(self.maker) if dropout_p and training else self.maker(0)
        if not self.layer:
            return self.function(*inputs, **options, **{self.own: dropout_p})
        if not dropout_p:
            return self.function(*inputs, **options)
        layer = torch.nn.Dropout(dropout_p).train(training)
        return self.function(*inputs, **options, **{self.own: layer})


def with_dropout_form(function: Callable[..., Any]) -> DropoutForm | None:
    """The function, where its parameter or mode of dropout has another name, or takes a layer; None for any other.

    The same where it takes a generator of random numbers.
    """
    parameters = signature_of(function).parameters
    generator = generator_in([*parameters.values()][3:])
    named = [p for p in parameters.values() if p.name != generator and _names_rate(p)]
    if len(named) != 1 or required(named[0]) or not _may_drop(named[0].default):
        return None
    mode = next((p.name for p in parameters.values() if _is_mode(p, generator)), "")
    if named[0].name == "dropout_p" and mode in ("", "training") and not generator:
        return None
    makers: tuple[Maker | None, ...] = MAKERS if generator else (None,)
    forms = (
        DropoutForm(function, named[0].name, layer, mode, generator, maker)
        for layer, maker in product((False, True), makers)
    )
    found = next((form for form in forms if _drops(form)), None)
    return None if found is not None and generator and _shares(found) else found


def _shares(form: DropoutForm) -> bool:
    """Whether all samples, heads or queries share a choice, as flax's functions do by default: no name tells which."""
    return any(_shares_in(form, x) for axis in range(3) for x in of_each_kind(SIZE[axis:]))


def _shares_in(form: DropoutForm, x: Any) -> bool:
    """The same by how many weights are kept, which values of 1 and equal scores show in any layout."""
    with torch_seeded(1), numpy_seeded(1):
        counts = safe_call(partial(form, 0 * x, 0 * x, 0 * x + 1, dropout_p=RATE)).value
    kept = np.asarray(first_part(counts), float) if counts is not None else np.zeros(())
    return any(bool((kept == kept.take([0], axis)).all()) for axis in range(kept.ndim - 1))


def _names_rate(parameter: inspect.Parameter) -> bool:
    """Whether it is about dropout, and neither a mask of it nor a flag."""
    name = parameter.name.lower()
    return "drop" in name and not name.endswith("mask") and not isinstance(parameter.default, bool)


def _is_mode(parameter: inspect.Parameter, generator: str) -> bool:
    """Whether it is a flag of a mode, and no choice of a deterministic backward pass, which is none by default."""
    if parameter.name not in MODES or required(parameter):
        return False
    return parameter.name != "deterministic" or parameter.default is not False or bool(generator)


def _may_drop(default: object) -> bool:
    return default is None or (type(default) in (int, float) and default == 0)


def _drops(form: DropoutForm) -> bool:
    """Whether the same call gives other answers each time with dropout, and the same without."""
    needed = [p.name for p in [*signature_of(form).parameters.values()][3:] if required(p)]
    arrays = [name for name in needed if unfelt(name, 1) is not None]
    if arrays:
        return any(_drops_in(form, SIZE, {name: unfelt(name, heads) for name in arrays}) for heads in SIZE[1:3])
    return any(_drops_in(form, SIZE[axis:], {}) for axis in range(3))


def _drops_in(form: DropoutForm, size: tuple[int, ...], given: Mapping[str, Any]) -> bool:
    return any(_drops_of(form, x, given) for x in of_each_kind(size))


def _drops_of(form: DropoutForm, x: Any, given: Mapping[str, Any]) -> bool:
    options = {name: unfelt_like(x, array) for name, array in given.items()}
    plain = [_answer(form, x, options, 0.0, seed) for seed in (1, 2)]
    if any(each.error for each in plain) or not _same(*plain):
        return False
    dropped = [_answer(form, x, options, RATE, seed) for seed in (1, 2)]
    return not any(each.error for each in dropped) and not _same(*dropped)


def _answer(form: DropoutForm, x: Any, options: Mapping[str, Any], rate: float, seed: int) -> CallOutcome[Any]:
    with torch_seeded(seed), numpy_seeded(seed):
        return safe_call(partial(form, x, x, x, dropout_p=rate, **options))


def _same(one: CallOutcome[Any], other: CallOutcome[Any]) -> bool:
    first, second = (first_part(each.value) for each in (one, other))
    arrays = hasattr(first, "shape") and hasattr(second, "shape")
    return bool((first == second).all()) if arrays and first.shape == second.shape else first is second
