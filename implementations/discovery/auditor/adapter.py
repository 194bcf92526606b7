"""Adapters: how a target is run, and the text of the adapter that runs it in the same way."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from torch import nn

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.auditor import function_text, probe_masks
from attention_conformance.implementations.discovery.auditor.findings import MASKED_OUT, MAY_ATTEND, Finding
from attention_conformance.implementations.discovery.auditor.keywords import Function, Keywords, find_keywords
from attention_conformance.implementations.discovery.auditor.probe_interface import find_subject
from attention_conformance.implementations.discovery.candidates import with_parameters
from attention_conformance.implementations.discovery.functions.calls import UNSURE, FunctionCall, find_call
from attention_conformance.implementations.discovery.modules.module_masks import SHAPES
from attention_conformance.implementations.discovery.modules.plans import ModulePlan, plan_module
from attention_conformance.implementations.discovery.modules.resized import resized
from attention_conformance.implementations.discovery.probe import Oracle, Run
from attention_conformance.implementations.discovery.signatures import Options, check_kind
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import OPTIONS
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.conventions import Conventions, Polarity
from attention_conformance.spec.premises import NO_PREMISES, Premises

ROOM = "attention_conformance.implementations"
MODULE_IMPORTS = (
    f"from {ROOM}.adapters.arranged import Arranged",
    f"from {ROOM}.discovery.modules.constructor_names import Size",
    f"from {ROOM}.discovery.modules.constructors import Constructor",
    f"from {ROOM}.discovery.modules.forwards import ModuleCall",
    f"from {ROOM}.discovery.modules.neutrals import Neutral",
    f"from {ROOM}.discovery.modules.module_runs import module_run",
    f"from {ROOM}.discovery.signatures import Options",
    f"from {ROOM}.discovery.vocabulary import MaskForm",
    "from attention_conformance import Polarity",
)
NOT_PROBED_ALONE = ("float_mask", "enable_gqa", "training")
"""Options without a topic of their own: shapes, other masks or the mode are probed with them."""


@dataclass(frozen=True)
class Adapter:
    """How a target is run.

    Attributes:
        imports, text: the adapter, where `target` is the target; the text is empty where there is nothing to adapt.
        expression: makes the `run`.
        findings: on how it is built and called.
        mask_shape: the axes along which its attention mask may differ.
        construct: an expression for `Implementation.construct`, or nothing.
        one_mask: its causal flag describes its attention mask, so that it takes one of the two.
        one_set_of_ids: segments or positions have the same ids for queries and keys.
        named: the topics that it has a parameter for.
        one_width: it is built with one width for all inputs and heads.
        functions: its plain functions.
    """

    run: Run
    imports: tuple[str, ...]
    text: str
    expression: str
    findings: tuple[Finding, ...]
    mask_shape: MaskShape = MaskShape.FULL
    construct: str = ""
    one_mask: bool = False
    one_set_of_ids: bool = False
    named: frozenset[str] = frozenset()
    one_width: bool = False
    functions: Mapping[str, Any] = field(default_factory=dict)

    def run_under(self, premises: Premises) -> str:
        """The expression for one that always does something, which is then no option of a call."""
        is_op = premises.causal and "_op(" in self.expression
        return f'{self.expression.removesuffix(")")}, implied=("is_causal",))' if is_op else self.expression


def find_adapter(target: object, device: str, oracle: Oracle, caution: str = "") -> Adapter:
    """How the target is run.

    Args:
        target: a function, a module class or an `Implementation`.
        device: where it computes.
        oracle: the right answers.
        caution: why the effects of masks, and of parameters of unknown names, are not probed; empty: they are.

    Raises:
        TargetError: it is nothing that can be called with query, key and value, or no way was found.
    """
    if isinstance(target, Implementation):
        return _of_implementation(target)
    _refuse_arrays(target, device)
    check_kind(target)
    if isinstance(target, type) and issubclass(target, nn.Module):
        return _of_module(target, device, oracle)
    assert callable(target)
    return _of_function(target, device, caution)


def _refuse_arrays(target: object, device: str) -> None:
    """Refuses a class that holds its weights as arrays: for the reason that `check` has, or because it needs none.

    Raises:
        TargetError: it is such a class.
    """
    read = with_parameters(target)
    if read is not target and isinstance(read, type):
        plan_module(read, Conventions(bool_mask=Polarity.MASKED_OUT), device)
        raise TargetError("its weights are arrays, which `check TARGET` reads: it needs no adapter")


def _topics(options: Options) -> frozenset[str]:
    """The topics that the named options have."""
    probed = (o for o in options.named.spelled if o not in NOT_PROBED_ALONE and OPTIONS[o].features)
    return frozenset(str(OPTIONS[option].features[0]) for option in probed)


def _of_implementation(target: Implementation) -> Adapter:
    kind = Finding("kind", "Implementation", "probed through its run; its name and claims are not used")
    why = "its adapter converts masks: through it, True may attend"
    findings = (kind, Finding.undetermined("mask polarity", why))
    return Adapter(target.run, (), "", "target.run", findings, functions=target.functions)


def _of_module(kind: type[nn.Module], device: str, oracle: Oracle) -> Adapter:
    subclass, planned = _planned(kind, device, oracle)
    plan, _ = planned.under(NO_PREMISES)
    call, name = plan.call, "Resized" if subclass else "target"
    stated = Options(call.options.spelled, call.options.always, implied=call.options.implied)
    text = "\n".join(
        [
            *([subclass, "", ""] if subclass else []),
            f"make = {source(replace(plan.make, rates=()), name)}",
            f"call = {source(replace(call, options=stated))}",
        ]
    )
    extras = {extra.position: extra.name for extra in plan.extras}
    keywords = (f", extras={quoted(extras)}" if extras else "") + (", evaluating=True" if plan.evaluating else "")
    expression = f"module_run(make, call{keywords})"
    return Adapter(
        function_text.run_of([*MODULE_IMPORTS, text], expression, kind),
        MODULE_IMPORTS,
        text,
        expression,
        tuple(_module_findings(plan, bool(subclass))),
        SHAPES.get(call.form, MaskShape.FULL),
        # A class that takes the width of one head never gets a total that the heads do not divide.
        construct="" if "//" in subclass else "make.construct",
        one_mask=call.flag_with_mask and "is_causal" in call.options,
        named=_topics(call.options),
        one_width=bool(subclass),
    )


def _planned(kind: type[nn.Module], device: str, oracle: Oracle) -> tuple[str, ModulePlan]:
    """The plan, and the text of a subclass for a class whose constructor takes something else."""
    try:
        return "", _with_polarity(kind, device, oracle)
    except TargetError as error:
        for text, subclass in resized(kind):
            with contextlib.suppress(TargetError):
                return text, _with_polarity(subclass, device, oracle)
        raise error


def _with_polarity(kind: type[nn.Module], device: str, oracle: Oracle) -> ModulePlan:
    """The plan with the polarity that the module's masks have."""
    plan = plan_module(kind, Conventions(bool_mask=Polarity.MASKED_OUT), device)
    subject, _ = find_subject(plan.run(), device, oracle)
    if subject is not None:
        masks = (probe_masks.boolean_mask(subject), probe_masks.key_padding(subject))
        if MASKED_OUT in (finding.answer for finding in masks):
            return replace(plan, call=replace(plan.call, polarity=Polarity.MAY_ATTEND))
    return plan


def source(value: Any, name: str = "") -> str:
    """The expression of a dataclass, without fields that have default values; a field `kind` is written as `name`."""
    lines = []
    for each in fields(value):
        current = getattr(value, each.name)
        default = each.default_factory() if callable(each.default_factory) else each.default
        if current != default:
            text = name if each.name == "kind" else source(current) if is_dataclass(current) else quoted(current)
            lines.append(f"    {each.name}={text},".replace("\n", "\n    "))
    body = "".join(f"\n{line}" for line in lines)
    return f"{type(value).__name__}({body}\n)" if body else f"{type(value).__name__}()"


def quoted(value: object) -> str:
    """A plain value as the formatter writes it; dictionaries of several entries in lines."""
    if is_dataclass(value) and not isinstance(value, type):
        return source(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        entries = [f"{quoted(key)}: {quoted(each)}" for key, each in value.items()]
        return f"{{{entries[0]}}}" if len(entries) == 1 else "{" + "".join(f"\n    {e}," for e in entries) + "\n}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _module_findings(plan: ModulePlan, one_width: bool) -> Iterator[Finding]:
    call = plan.call
    like = "built and called as torch.nn.MultiheadAttention, as far as it has its names"
    own = "built with one width for all inputs and a number of heads"
    yield Finding("kind", "module class", own if one_width else like)
    yield Finding("framework", "torch", "it is a torch.nn.Module")
    yield Finding("layout", "LBE" if call.length_first else "BLE", "no sample depends on another")
    yield Finding("arguments", "query, key, value" if call.inputs == 3 else "x", "")
    if call.options.spelled:
        yield Finding("options", ", ".join(sorted({*call.options.spelled.values()})), "by name")
    if "bool_mask" in call.options or "key_padding_mask" in call.options:
        answer = MASKED_OUT if call.polarity is Polarity.MASKED_OUT else MAY_ATTEND
        yield Finding("mask polarity", answer, f"masks of shape {call.form} were accepted")
    if plan.evaluating:
        yield Finding("mode", "evaluation", "in training mode it answers at random")


def _of_function(target: Callable[..., Any], device: str, caution: str) -> Adapter:
    call = find_call(target, device)
    keywords, shape = find_keywords(Function(target, call, function_text.run_of_call, device), not caution)
    plain = function_text.is_plain(call, keywords)
    imports = [line for line in function_text.imports(call) if not plain or "attention_conformance" in line]
    return Adapter(
        function_text.run_of_call(call, keywords, target),
        tuple(imports),
        "" if plain else function_text.body(call, keywords),
        function_text.expression(call, keywords, "target" if plain else "call"),
        tuple(_function_findings(call, keywords, caution)),
        shape,
        one_set_of_ids=bool(keywords.one_for_both),
        named=_topics(keywords.options),
    )


def _function_findings(call: FunctionCall, keywords: Keywords, caution: str) -> Iterator[Finding]:
    yield Finding("kind", "function")
    yield Finding("framework", call.framework, call.evidence["framework"])
    pairs = zip(call.inputs, call.order, strict=True)
    roles = ", ".join(f"{own} is {role}" if own != role else own for own, role in pairs)
    layout = call.axes if call.axes == call.output else f"{call.axes} -> {call.output}"
    if UNSURE in call.evidence:
        yield Finding.undetermined("arguments", f"{roles}: {call.evidence[UNSURE]}")
        yield Finding.undetermined("layout", f"{layout} was assumed: see arguments")
    else:
        yield Finding("arguments", roles, call.evidence["arguments"])
        yield Finding("layout", layout, call.evidence["layout"])
    own = {**keywords.names, "attn_mask": keywords.mask, "key_padding_mask": keywords.padding}
    if names := [name if name == option else f"{name} ({option})" for option, name in own.items() if name]:
        yield Finding("options", f"{len(names)}", ", ".join(names))
    has_mask = keywords.bool_mask or keywords.padding
    if has_mask and caution:
        yield Finding.undetermined("mask polarity", f"as masks and other parameters were probed, {caution}")
    elif has_mask:
        masked_out = keywords.masked_out if keywords.bool_mask else keywords.padding_masked_out
        yield Finding("mask polarity", MASKED_OUT if masked_out else MAY_ATTEND, keywords.evidence)
        yield Finding("mask form", str(keywords.form) if keywords.bool_mask else "(B, Lk)")
    for extra in keywords.extras:
        yield Finding(f"part {extra.position} of its answer", extra.name.replace("_", " "), f"axes {extra.axes}")
