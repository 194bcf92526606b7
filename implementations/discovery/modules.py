"""Module classes as candidates: built and called as torch.nn.MultiheadAttention, or a part of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import (
    build_mha,
    inputs_of,
    mask_options,
    one_mask,
    polarised,
)
from attention_conformance.implementations.adapters.native import WITHOUT_WEIGHTS
from attention_conformance.implementations.adapters.op_options import extra_options
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.discovery.constructors import WIDTH, Constructor, built, constructor
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.discovery.option_detection import (
    drops_output,
    option_claims,
    with_observed,
    without,
)
from attention_conformance.implementations.discovery.probing import (
    BIASED,
    CAUSAL,
    MASKED,
    PLAIN,
    Choosing,
    Probe,
    Run,
    check_answer,
    find_extras,
    same,
    settle,
)
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    OPTIONS,
    SWALLOWED,
    Options,
    check_order,
    positional,
    read_options,
    required,
    role,
    takes_any,
)
from attention_conformance.implementations.discovery.spellings import check_parameters, find_places, held
from attention_conformance.spec.cases import Case, MaskShape, Padding
from attention_conformance.spec.features import Conventions, Feature, Polarity, Scope
from attention_conformance.spec.problem import Problem

KEY_WIDTH, VALUE_WIDTH = 10, 11
"""Widths of an instance that is built to look at its parameters."""

ALWAYS = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.GRADIENTS,
        Feature.PROJECTIONS,
        Feature.VIEWS,
        Feature.EMPTY_SIZES,
        Feature.ALTERNATIVES,
    }
)
BY_PARAMETER = {"b_q": Feature.BIAS, "w_o": Feature.OUTPUT_PROJECTION, "b_o": Feature.OUTPUT_BIAS}
"""What a parameter claims that the module has."""


class Form(StrEnum):
    """The shape in which a module takes its attention mask."""

    FLAT = "(B * H, Lq, Lk)"
    FULL = "(B, H, Lq, Lk)"
    SHARED = "(Lq, Lk)"
    EITHER = "(Lq, Lk) where it is the same for all samples and heads, (B * H, Lq, Lk) elsewhere"


@dataclass(frozen=True)
class Calling:
    """How a module is called.

    Attributes:
        inputs: 3, query, key and value, or 1, the input of self-attention.
        options: what its forward takes besides.
        asked: given in every call: that it shall return the weights, if it can.
        hint: whether its causal flag describes a mask that is passed with it, as in nn.MultiheadAttention.
        floats: whether a padding mask beside a float mask is one of floats, as nn.MultiheadAttention wants it.
    """

    inputs: int
    options: Options
    polarity: Polarity
    length_first: bool = False
    form: Form = Form.FLAT
    hint: bool = True
    floats: bool = True
    asked: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The module's answer to the problem's tensors, with the output turned to (B, Lq, width)."""
        return self.bound_call(module, given, problem)()

    def bound_call(self, module: nn.Module, given: Tensors, problem: Problem) -> Callable[[], Any]:
        """The same, with layout, masks and options converted."""
        rotated = {x: x.transpose(0, 1) if self.length_first else x for x in dict.fromkeys(inputs_of(given))}
        inputs = [rotated[x] for x in inputs_of(given)][: self.inputs]
        call = partial(module, *inputs, **self.options.renamed(self._asked(given, problem)), **self.asked)
        return (lambda: _output_turned(call())) if self.length_first else call

    def _asked(self, given: Tensors, problem: Problem) -> dict[str, Any]:
        asked = dict(mask_options(given, problem, self.polarity))
        if not self.floats and "key_padding_mask" in asked:
            asked["key_padding_mask"] = polarised(given["key_padding_mask"], self.polarity)
        if problem.causal and not (self.hint and "bool_mask" in self.options):
            asked.pop("attn_mask")
        if "attn_mask" in asked:
            asked["attn_mask"] = self._formed(asked["attn_mask"], given, problem)
        further = extra_options(problem, given).items()
        asked |= {name: option for name, option in further if name in self.options}
        return asked | ({} if problem.scale is None else {"scale": problem.scale})

    def _formed(self, mask: torch.Tensor, given: Tensors, problem: Problem) -> torch.Tensor:
        """The mask as `mask_options` gives it, (B * H, Lq, Lk) or (Lq, Lk), in the form that is taken."""
        if "attn_mask" not in given and self.form is not Form.FULL:
            return mask
        if self.form is Form.FULL:
            heads = (problem.query.shape[0], problem.num_heads)
            return mask.view(*heads, *mask.shape[1:]) if mask.ndim == 3 else mask[None, None]
        shared = self.form is Form.SHARED or (self.form is Form.EITHER and given["attn_mask"].ndim == 2)
        return polarised(given["attn_mask"], self.polarity) if shared else mask


def _output_turned(answer: Any) -> Any:
    if isinstance(answer, tuple):
        return (_output_turned(answer[0]), *answer[1:])
    return answer.transpose(0, 1) if isinstance(answer, torch.Tensor) and answer.ndim > 1 else answer


def module_candidate(name: str, kind: type[nn.Module], settings: Mapping[str, str], device: str) -> Implementation:
    """Wraps a module class; what its constructor and forward do not take is not claimed.

    True in its boolean masks means masked out, as in torch.nn.MultiheadAttention, unless the settings say so.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
        ValueError: a setting that does not exist.
    """
    conventions = Conventions(bool_mask=Polarity.MASKED_OUT).claiming(settings)
    make, calling = constructor(kind), _calling(kind, conventions.bool_mask)
    with torch.random.fork_rng(devices=[]):
        module = built(make)
        check_parameters(module, (WIDTH,) * 3)
        features = _features(module, calling) | _width_features(make) | make.features
        calling = replace(calling, length_first=_length_first(module, calling.inputs))
    claims = Claims(Scope.MODULE, features, conventions, fit=one_mask)
    probe = Probe(calling, _adapter(make, evaluating=False), claims, device)
    return _settled(name, make, probe, calling, "returned-weights" not in settings)


def _settled(name: str, make: Constructor, probe: Probe, calling: Calling, observing: bool) -> Implementation:
    """The implementation that a few calls leave; if observing, what they show of returned weights is claimed."""
    first, second = probe.ask(PLAIN), probe.ask(PLAIN)
    check_answer(first, lambda answer: isinstance(answer, torch.Tensor), "a tensor")
    random = not second.error and not same(first, second)
    probe = replace(probe, adapt=_adapter(make, evaluating=random))
    calling = _with_padding(_with_hint(_with_form(calling, probe), probe), probe)
    fits = _shared if calling.form is Form.SHARED else one_mask
    probe = replace(probe, function=calling, claims=replace(probe.claims, fit=fits))
    extras = find_extras(probe.ask(PLAIN), Scope.MODULE)
    probe, further = _further(probe, make.features | calling.options.named, random)
    claims, notes = settle(with_observed(probe, extras) if observing else probe)
    run = _adapter(make, evaluating=random, extras=extras.names)(extras.choosing(calling))
    alternatives = _ways(make, calling, random, probe)
    mode = ["in eval mode, because it answers at random in training mode"] if random else []
    layout = "(L, B, E)" if calling.length_first else "(B, L, E)"
    about = "; ".join([f"a module class, {layout}", *calling.options.notes, *mode, *extras.notes, *notes, *further])
    return Implementation(
        name,
        extras.claimed(claims, bool(alternatives)),
        run,
        about,
        construct=_construct(make),
        alternatives=alternatives,
    )


def _further(probe: Probe, named: Set[Feature], random: bool) -> tuple[Probe, list[str]]:
    """The probe without further claims that are not borne out, and notes on them."""
    dropping = {Feature.DROPOUT, Feature.EVALUATION}
    if random:
        return option_claims(without(probe, dropping), named)
    probe, notes = option_claims(probe, named)
    if Feature.DROPOUT in probe.claims and drops_output(probe):
        notes.append("dropout not claimed: it takes out components of the output, where weights are meant")
        probe = without(probe, dropping)
    return probe, notes


def _ways(make: Constructor, calling: Calling, random: bool, probe: Probe) -> dict[str, Run]:
    """The other ways to call it that answer a plain question at all."""
    alternatives = dict(_called_otherwise(make, calling, random)) | dict(_built_otherwise(make, calling, random))
    return {way: run for way, run in alternatives.items() if probe.answers(run, PLAIN)}


def _called_otherwise(make: Constructor, calling: Calling, random: bool) -> Iterator[tuple[str, Run]]:
    spelled = calling.options.spelled
    if "need_weights" in spelled:
        without = replace(calling, asked={spelled["need_weights"]: False})
        yield WITHOUT_WEIGHTS, _adapter(make, evaluating=random)(_output_of(without))
        fast = _adapter(make, evaluating=True, context=torch.inference_mode)
        yield "without weights, in evaluation and inference mode", fast(_output_of(without))
    if {"need_weights", "average_attn_weights"} <= set(spelled):
        asked = {spelled["need_weights"]: True, spelled["average_attn_weights"]: True}
        averaging = replace(calling, asked=asked)
        yield "with averaged weights", _adapter(make, evaluating=random, extras=("averaged_weights",))(averaging)
    if calling.form is Form.FLAT and "bool_mask" in spelled:
        either = replace(calling, form=Form.EITHER)
        yield "with one mask for all samples and heads", _adapter(make, evaluating=random)(_output_of(either))


def _built_otherwise(make: Constructor, calling: Calling, random: bool) -> Iterator[tuple[str, Run]]:
    called = _output_of(calling)
    if not random:
        yield "in evaluation mode", _adapter(make, evaluating=True)(called)
        yield "in inference mode", _adapter(make, evaluating=False, context=torch.inference_mode)(called)
    if "batch_first" in make.options:
        rotated = replace(make, options={**make.options, "batch_first": calling.length_first})
        other = replace(calling, length_first=not calling.length_first)
        yield "in the other layout", _adapter(rotated, evaluating=random)(_output_of(other))
    if make.rates:
        dropping = replace(make, options={**make.options, **dict.fromkeys(make.rates, 0.5)})
        yield "in evaluation mode, built with dropout", _adapter(dropping, evaluating=True)(called)


def _output_of(calling: Calling) -> Choosing:
    return Choosing(calling, ())


def _construct(make: Constructor) -> Callable[[int, int], object]:
    return lambda num_heads, width: make(width, num_heads)


def _adapter(
    make: Constructor,
    *,
    evaluating: bool,
    extras: tuple[str, ...] = (),
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Callable[[Callable[..., Any]], Callable[[Problem, str], Result]]:
    def build(problem: Problem) -> nn.Module:
        groups = {} if problem.num_kv_heads == problem.num_heads else {"num_kv_heads": problem.num_kv_heads}
        return build_mha(make, **groups)(problem).train(not evaluating)

    return lambda call: torch_module(build, call, find_places, extras=extras, context=context)


def _width_features(make: Constructor) -> set[Feature]:
    if not make.widths:
        return set()
    check_parameters(built(make, kdim=KEY_WIDTH, vdim=VALUE_WIDTH), (WIDTH, KEY_WIDTH, VALUE_WIDTH))
    return {Feature.INPUT_WIDTHS}


def _calling(kind: type[nn.Module], polarity: Polarity) -> Calling:
    """What the class's forward takes.

    Raises:
        TargetError: it has none, or takes two inputs, or a required parameter that is not known.
    """
    if kind.forward is nn.Module.forward:
        raise TargetError(f"it defines no forward: define forward(query, key, value), {ADAPTER}")
    whole = inspect.signature(kind.forward)
    signature = whole.replace(parameters=list(whole.parameters.values())[1:])
    inputs = _inputs(signature)
    check_order(inputs)
    swallowed = {**SWALLOWED, "key_padding_mask": "key_padding_mask"}
    weighing = {"need_weights": "need_weights", "average_attn_weights": "average_attn_weights"}
    options = read_options(signature, inputs, {**swallowed, **weighing})
    wanted = {"need_weights": True, "average_attn_weights": False}
    asked = {options.spelled[option]: wish for option, wish in wanted.items() if option in options}
    count = 3 if takes_any(signature, inspect.Parameter.VAR_POSITIONAL) else len(inputs)
    if count not in (1, 3):
        names = ", ".join(p.name for p in inputs)
        raise TargetError(f"its forward takes ({names}): let it take query, key, value or x, {ADAPTER}")
    return Calling(count, options, polarity, asked=asked)


def _inputs(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters by position that are required, or called key or value, and are no options."""
    names = {name for spellings in OPTIONS.values() for name in spellings}
    others = [p for p in positional(signature) if p.name not in names]
    return [p for p in others if required(p) or role(p.name)][:3]


def _features(module: nn.Module, calling: Calling) -> frozenset[Feature]:
    features = ALWAYS | calling.options.features
    features |= {feature for name, feature in BY_PARAMETER.items() if name in held(module)}
    return features | {Feature.CROSS, Feature.KEY_VALUE} if calling.inputs == 3 else features


def _length_first(built: nn.Module, inputs: int) -> bool:
    """Whether its layout is (L, B, E): as it says, or else as no sample depends on another."""
    if isinstance(told_as := getattr(built, "batch_first", None), bool):
        return not told_as
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, WIDTH, generator=generator)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / WIDTH**0.5)
        try:
            return not _independent(built.eval(), x, inputs, 0) and _independent(built, x, inputs, 1)
        except (Exception, SystemExit):
            return False  # a call of the probe will say what is wrong


def _independent(module: nn.Module, x: torch.Tensor, inputs: int, axis: int) -> bool:
    """Whether the last slice along the axis stays when the first changes; a causal token would see that."""
    changed = x.clone()
    changed.select(axis, 0).add_(1.0)
    before, after = (_output(module(*(given,) * inputs)) for given in (x, changed))
    return torch.allclose(before.select(axis, -1), after.select(axis, -1), atol=1e-5)


def _output(answer: Any) -> torch.Tensor:
    output: torch.Tensor = answer[0] if isinstance(answer, tuple) else answer
    return output


def _with_form(calling: Calling, probe: Probe) -> Calling:
    """The first form of an attention mask that raises no error; the first of all if every one does."""
    case = MASKED if "bool_mask" in calling.options else BIASED
    if not {"bool_mask", "float_mask"} & set(calling.options.spelled):
        return calling
    for form in (Form.FLAT, Form.FULL, Form.SHARED):
        formed = replace(calling, form=form)
        wanted = replace(case, mask_shape=MaskShape.SHARED) if form is Form.SHARED else case
        if not replace(probe, function=formed).ask(wanted).error:
            return formed
    return calling


def _with_hint(calling: Calling, probe: Probe) -> Calling:
    """A causal flag goes with its mask, as in nn.MultiheadAttention, unless only the flag alone is taken."""
    if "is_causal" not in calling.options:
        return calling
    alone = replace(calling, hint=False)
    with_mask, without = (replace(probe, function=way).ask(CAUSAL).error for way in (calling, alone))
    return alone if with_mask and not without else calling


def _with_padding(calling: Calling, probe: Probe) -> Calling:
    """A padding mask beside a float mask is one of floats, unless only a boolean one is taken."""
    if not {"key_padding_mask", "float_mask"} <= set(calling.options.spelled):
        return calling
    case = replace(BIASED, mask_shape=MaskShape.SHARED, padding=Padding.RIGHT)
    booleans = replace(calling, floats=False)
    floats, without = (replace(probe, function=way).ask(case).error for way in (calling, booleans))
    return booleans if floats and not without else calling


def _shared(case: Case) -> Case | Unsupported:
    return one_mask(replace(case, mask_shape=MaskShape.SHARED))
