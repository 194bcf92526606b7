"""Dropout that a function takes as a layer, or as a rate under a name of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import CallOutcome, safe_call
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.spec.optional import optional

torch = optional("torch")
RATE = 0.5
SIZE = (2, 3, 16, 4)
"""In each layout such inputs have several samples, heads and tokens, and so many weights that some are dropped."""


@dataclass(frozen=True)
class DropoutForm:
    """A function as one of `dropout_p`, and of `training` where it takes a layer, which has the two modes.

    Attributes:
        function: it.
        own: its parameter.
        layer: whether that is given a layer, and not its rate.
    """

    function: Callable[..., Any]
    own: str
    layer: bool

    @property
    def __signature__(self) -> inspect.Signature:
        parameters = signature_of(self.function).parameters.values()
        renamed = [p.replace(name="dropout_p", default=0.0) if p.name == self.own else p for p in parameters]
        if not self.layer or self._has_mode:
            return inspect.Signature(renamed)
        mode = inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=True)
        at = len(renamed) - sum(p.kind is p.VAR_KEYWORD for p in renamed)
        return inspect.Signature([*renamed[:at], mode, *renamed[at:]])

    @property
    def _has_mode(self) -> bool:
        """Whether the function has a mode of its own, next to that of the layer."""
        return "training" in signature_of(self.function).parameters

    @property
    def about(self) -> str:
        """For a note."""
        return f"its {self.own!r} is given {'a layer of dropout' if self.layer else 'the rate of dropout'}"

    def __call__(self, *inputs: Any, dropout_p: float = 0.0, **options: Any) -> Any:
        """The function's answer."""
        if not self.layer:
            return self.function(*inputs, **options, **{self.own: dropout_p})
        training = options.get("training", True)
        if not self._has_mode:
            options.pop("training", None)
        if not dropout_p:
            return self.function(*inputs, **options)
        layer = torch.nn.Dropout(dropout_p).train(training)
        return self.function(*inputs, **options, **{self.own: layer})


def with_dropout_form(function: Callable[..., Any]) -> DropoutForm | None:
    """The function, where its one parameter of dropout has another name or takes a layer; None for any other."""
    parameters = signature_of(function).parameters
    named = [p for p in parameters.values() if "drop" in p.name.lower() and not p.name.lower().endswith("mask")]
    if len(named) != 1 or named[0].name == "dropout_p" or required(named[0]) or not _may_drop(named[0].default):
        return None
    forms = (DropoutForm(function, named[0].name, layer) for layer in (False, True))
    return next((form for form in forms if _drops(form)), None)


def _may_drop(default: object) -> bool:
    return default is None or (type(default) in (int, float) and default == 0)


def _drops(form: DropoutForm) -> bool:
    """Whether the same call gives other answers each time with dropout, and the same without."""
    plain = [_answer(form, 0.0, seed) for seed in (1, 2)]
    dropped = [_answer(form, RATE, seed) for seed in (1, 2)]
    if any(each.error for each in (*plain, *dropped)):
        return False
    return _same(*plain) and not _same(*dropped)


def _answer(form: DropoutForm, rate: float, seed: int) -> CallOutcome[Any]:
    inputs = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(5))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return safe_call(partial(form, *inputs, dropout_p=rate))


def _same(one: CallOutcome[Any], other: CallOutcome[Any]) -> bool:
    first, second = (each.value[0] if isinstance(each.value, tuple | list) else each.value for each in (one, other))
    return bool(torch.equal(first, second)) if isinstance(first, torch.Tensor) else first is second
