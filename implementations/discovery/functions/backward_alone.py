"""Backward passes alone: functions of query, key, value and the gradient of the output that return three gradients.

They are called as the backward pass of attention whose forward pass is the suite's own. What they are given of it, and
in which axes, is what short calls show to give the right gradient of at least one input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import GRADIENTS
from attention_conformance.implementations.discovery.signatures import is_variadic, required, role, signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS, KNOWN_NAMES

COTANGENTS = GRADIENTS | {"g", "grad", "dz", "cotangent", "upstream", "gradient", "dattn", "dacc"}
"""Names of the gradient of the output, in lower case."""
OUTPUTS, WEIGHTS = {"o", "out", "output"}, {"p", "probs", "weights", "attn", "attn_weights", "a"}
LOGS, DELTAS = {"lse", "softmax_lse", "logsumexp", "log_sum_exp", "l", "stats", "m"}, {"delta", "d"}
"""Names of what the forward pass keeps."""
SCALES, FLAGS = {"scale"}, {"is_causal"}
"""Options that are passed on, by the names that the suite knows them by."""
LAYOUTS = ("BHLD", "BLHD", "NLD", "LD")
SAME = float(np.finfo(np.float32).eps) ** (2 / 3)
"""Of the largest number of a gradient: one that is as near has two thirds of the digits of float32."""
ABOUT = "judged as the backward pass of attention whose forward pass is the suite's own"


@dataclass(frozen=True)
class Way:
    """How a backward pass is called.

    Attributes:
        layout: its axes.
        column: whether the log-sum-exp has a last axis of one element.
        at_end: whether the last query stands at the last key, where it is causal.
        arrays: whether it takes arrays of NumPy.
        causal: whether it is causal without a flag.
    """

    layout: str
    column: bool
    at_end: bool
    arrays: bool
    causal: bool = False


@dataclass(frozen=True)
class BackwardAlone:
    """A function of query, key and value (B, H, L, d), whose gradients another function returns.

    Attributes:
        function: that one.
        names: of its parameters, by what they are given.
        options: its own names for options, by those that the suite knows them by.
        way: how it is called.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    options: Mapping[str, str]
    way: Way
    about: str = ABOUT

    @property
    def __name__(self) -> str:
        """Its name in messages."""
        return str(getattr(self.function, "__name__", "backward"))

    @property
    def __signature__(self) -> inspect.Signature:
        own, kind = signature_of(self.function).parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD
        inputs = [inspect.Parameter(name, kind) for name in INPUTS]
        return inspect.Signature([*inputs, *(own[name].replace(kind=kind) for name in self.options.values())])

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        """The output, whose gradients are those of the function."""
        if not isinstance(query, torch.Tensor):
            raise TypeError("its forward pass is one of tensors")
        by_role = self.flags | {name: options[own] for name, own in self.options.items() if own in options}
        result: torch.Tensor = _Given.apply(self, by_role, query, key, value)  # type: ignore[no-untyped-call]
        return result

    @property
    def flags(self) -> dict[str, bool]:
        """What a flag is given where a call has none: it may be set by default."""
        return dict.fromkeys(FLAGS & self.options.keys(), False)

    def gradients(self, saved: Mapping[str, torch.Tensor], options: Mapping[str, Any]) -> list[torch.Tensor]:
        """What the function returns for what the forward pass keeps, (B, H, L, d) each."""
        laid = [*_laid(saved, self.way)]
        found = [self._one(each, options) for each in laid]
        return [_restored([one[n] for one in found], saved[name], self.way) for n, name in enumerate(INPUTS)]

    def _one(self, saved: Mapping[str, torch.Tensor], options: Mapping[str, Any]) -> list[torch.Tensor]:
        given = {own: saved[name].numpy() if self.way.arrays else saved[name] for own, name in self.names.items()}
        given |= {own: options[name] for name, own in self.options.items() if name in options}
        answer = self.function(**given)
        parts = [*answer.values()] if isinstance(answer, Mapping) else [*answer]
        parts = [torch.as_tensor(part) for part in parts[:3]]
        if [part.shape for part in parts] != [saved[name].shape for name in INPUTS]:
            raise ValueError("it returns no gradients of the shapes of query, key and value")
        return parts


class _Given(torch.autograd.Function):
    """Attention whose gradients are given; these are computed in the forward pass, too, so that it raises early."""

    @staticmethod
    def forward(ctx: Any, alone: BackwardAlone, options: Mapping[str, Any], *inputs: torch.Tensor) -> torch.Tensor:
        saved = _forward(*inputs, **options, way=alone.way)
        alone.gradients({**saved, "cotangent": torch.zeros_like(saved["output"]), "delta": saved["lse"] * 0}, options)
        ctx.alone, ctx.options, ctx.names = alone, options, [*saved]
        ctx.save_for_backward(*saved.values())
        return saved["output"]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        return None, None, *ctx.alone.gradients(_with(saved, cotangent), ctx.options)


def _with(saved: Mapping[str, torch.Tensor], cotangent: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is kept, with the gradient of the output and its product with the output."""
    delta = (cotangent.to(saved["lse"]) * saved["output"].to(saved["lse"])).sum(-1)
    return {**saved, "cotangent": cotangent.contiguous(), "delta": delta}


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    way: Way,
) -> dict[str, torch.Tensor]:
    """Attention, and all that a backward pass may need; the log-sum-exp of a row without keys is infinite."""
    wide = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // max(1, key.shape[1])
    keys, values = (x.to(wide).repeat_interleave(groups, 1) for x in (key, value))
    scores = query.to(wide) @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal or way.causal:
        ahead = scores.shape[-1] - scores.shape[-2] if way.at_end else 0
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + ahead)
        scores = scores.masked_fill(later, -torch.inf)
    lse = scores.logsumexp(-1)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    weights = (scores - lse[..., None]).exp()
    output = (weights @ values).to(query.dtype)
    inputs = dict(zip(INPUTS, (query.detach(), key.detach(), value.detach()), strict=True))
    return {**inputs, "output": output, "lse": lse, "weights": weights.to(query.dtype)}


def _laid(saved: Mapping[str, torch.Tensor], way: Way) -> Iterator[dict[str, torch.Tensor]]:
    """What each call is given, in the axes of the function."""
    of_rows = ("lse", "delta")
    own = {name: x[..., None] if way.column and name in of_rows else x for name, x in saved.items()}
    if way.layout == "BLHD":
        moved = {"output", "cotangent", *INPUTS}
        yield {name: x.transpose(1, 2).contiguous() if name in moved else x for name, x in own.items()}
    elif way.layout == "NLD":
        yield {name: x.flatten(0, 1) for name, x in own.items()}
    elif way.layout == "LD":
        flat = {name: x.flatten(0, 1) for name, x in own.items()}
        yield from ({name: x[n] for name, x in flat.items()} for n in range(len(flat["query"])))
    else:
        yield own


def _restored(parts: Sequence[torch.Tensor], like: torch.Tensor, way: Way) -> torch.Tensor:
    """A gradient in the axes and the dtype of what it belongs to."""
    whole = torch.stack([*parts]) if way.layout == "LD" else parts[0]
    return (whole.transpose(1, 2) if way.layout == "BLHD" else whole.reshape(like.shape)).to(like)


def backward_alone(function: Any) -> BackwardAlone | None:
    """The function as attention, if it is a backward pass alone and a short call shows how it is called; else None."""
    signature = safe_call(lambda: signature_of(function)).value if inspect.isfunction(function) else None
    parameters = [p for p in signature.parameters.values() if not is_variadic(p)] if signature else []
    names = {p.name: part for p in parameters if (part := _part(p))}
    if {*INPUTS, "cotangent"} - {*names.values()} or len({*names.values()}) < len(names):
        return None
    options = {KNOWN_NAMES[p.name]: p.name for p in parameters if KNOWN_NAMES.get(p.name) in SCALES | FLAGS}
    if any(required(p) and p.name not in {*names, *options.values()} for p in parameters):
        return None
    made = partial(BackwardAlone, function, names, options)
    masks = [(True, False)] if FLAGS & {*options} else [(True, False), (True, True), (False, True)]
    ways = [
        Way(layout, column, at_end, arrays, causal)
        for (at_end, causal), layout, column, arrays in product(masks, LAYOUTS, (False, True), (False, True))
    ]
    right = {way: _right(made(way)) for way in ways}
    best = max(right, key=lambda way: right[way])
    if not right[best]:
        return None
    corners = [replace(best, at_end=at_end) for at_end in (True, False)]
    return made(max(corners, key=lambda way: _right(made(way), is_causal=True)) if FLAGS & {*options} else best)


def _part(parameter: inspect.Parameter) -> str:
    """What a parameter is given of the forward pass, by its name."""
    name = parameter.name.lower()
    kinds = {"cotangent": COTANGENTS, "output": OUTPUTS, "weights": WEIGHTS, "lse": LOGS, "delta": DELTAS}
    return role(parameter.name) or next((part for part, those in kinds.items() if name in those), "")


def _right(alone: BackwardAlone, **options: Any) -> int:
    """How many of its gradients are right in a call."""
    draw = torch.Generator().manual_seed(3)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 5, 4))
    *inputs, cotangent = (torch.randn(shape, generator=draw) for shape in shapes)
    leaves = [x.clone().requires_grad_() for x in inputs]
    options = alone.flags | options
    saved = _forward(*inputs, **options, way=alone.way)
    found = safe_call(lambda: alone.gradients(_with(saved, cotangent), options)).value
    if found is None:
        return 0
    output = _forward(*leaves, **options, way=alone.way)["output"]
    expected = torch.autograd.grad(output, leaves, cotangent)
    return sum(bool((x - y).abs().max() <= SAME * y.abs().max()) for x, y in zip(found, expected, strict=True))
