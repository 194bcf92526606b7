"""Step one: how a target is called. What comes out is a `run`, and the text of the adapter that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.audit import adapting, building
from attention_conformance.implementations.discovery.audit.adapting import MaskForm, Taken
from attention_conformance.implementations.discovery.audit.calling import UNSURE, Calling, find_calling
from attention_conformance.implementations.discovery.audit.findings import Finding, undetermined
from attention_conformance.implementations.discovery.audit.masks import MASKED_OUT, MAY_ATTEND
from attention_conformance.implementations.discovery.audit.posing import Run
from attention_conformance.implementations.discovery.audit.taking import find_taken
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.discovery.modules import Form
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.features import Polarity


@dataclass(frozen=True)
class Convention:
    """How a target is called.

    Attributes:
        run: answers problems.
        imports, text: the adapter, where `target` is the target; the text is empty where there is nothing to adapt.
        made: the expression that makes the `run`.
        mask_shape: the axes along which its attention mask may differ.
        construct: it is a module class, which is built with width and number of heads.
        one_mask: its causal flag describes its attention mask, so that it takes one of the two.
        one_set_of_ids: segments have the same ids for queries and keys.
    """

    run: Run
    imports: tuple[str, ...]
    text: str
    made: str
    findings: tuple[Finding, ...]
    mask_shape: MaskShape = MaskShape.FULL
    construct: str = ""
    one_mask: bool = False
    one_set_of_ids: bool = False
    named: frozenset[str] = frozenset()
    """The questions that it has a parameter of its own for."""
    tied: bool = False
    """It is built with one width for all."""
    functions: dict[str, Any] = field(default_factory=dict)


def find_convention(target: object, device: str, wary: str = "") -> Convention:
    """How the target is called.

    Args:
        target: a function, a module class or an `Implementation`.
        device: where it computes.
        wary: why its masks, and parameters of unknown names, are left alone; empty: they are tried.

    Raises:
        TargetError: it is nothing that can be called with query, key and value, or no way was found.
    """
    if isinstance(target, Implementation):
        return _of_implementation(target)
    if isinstance(target, type):
        return _of_module(target, device)
    if isinstance(target, nn.Module):
        raise TargetError(f"it is an instance of {type(target).__name__}: give the class")
    if not callable(target):
        raise TargetError(f"it is an object of type {type(target).__name__}: give a function or a module class")
    return _of_function(target, device, wary)


def _of_implementation(target: Implementation) -> Convention:
    kind = Finding("kind", "Implementation", "asked through its run; its name and claims are not looked at")
    why = "its adapter turns masks: seen through it, True may attend"
    return Convention(
        target.run,
        ("from attention_conformance.implementations.api.contract import Implementation",),
        "",
        "target.run",
        (kind, undetermined("mask polarity", why)),
        functions=dict(target.functions),
    )


def _of_module(target: type, device: str) -> Convention:
    if not issubclass(target, nn.Module):
        raise TargetError("it is a class, but no torch.nn.Module: give a function or a module class")
    found = building.find_module(target, device)
    first = found.make.named
    sizes = "embed_dim=width, num_heads=num_heads" if first else "width, num_heads"
    return Convention(
        building.run(found, target),
        tuple(building.IMPORTS),
        building.body(found),
        building.made(found),
        tuple(_of_module_told(found)),
        MaskShape.SHARED if found.calling.form == Form.SHARED else MaskShape.FULL,
        # A class that takes the width of one head is never told a total that the heads do not divide.
        construct="" if "//" in found.shaped else f"lambda num_heads, width: {found.name}({sizes})",
        one_mask=found.calling.hint and "is_causal" in found.calling.options,
        named=_questions(set(found.calling.options.spelled) - found.calling.options.swallowed),
        tied=bool(found.shaped),
    )


def _of_module_told(found: building.Module) -> Iterator[Finding]:
    calling = found.calling
    like = "built and called as torch.nn.MultiheadAttention, as far as it has its names"
    yield Finding(
        "kind", "module class", "built with one width for all and a number of heads" if found.shaped else like
    )
    yield Finding("framework", "torch", "it is a torch.nn.Module")
    yield Finding("layout", "LBE" if calling.length_first else "BLE", "no sample depends on another")
    names = "query, key, value" if calling.inputs == 3 else "x"
    yield Finding("arguments", names, "")
    options = calling.options.spelled
    if own := sorted({f"{own}" for own in options.values()}):
        yield Finding("options", ", ".join(own), "by name")
    if "bool_mask" in options or "key_padding_mask" in options:
        hides = calling.polarity is Polarity.MASKED_OUT
        told = f"masks of shape {calling.form} were taken"
        yield Finding("mask polarity", MASKED_OUT if hides else MAY_ATTEND, told)
    if found.evaluating:
        yield Finding("mode", "evaluation", "in training mode it answers at random")


def _of_function(target: Callable[..., Any], device: str, wary: str) -> Convention:
    calling = find_calling(target, device)
    taken, shape = find_taken(calling, target, device, not wary)
    plain = adapting.is_plain(calling, taken)
    imports = [line for line in adapting.imports(calling) if not plain or "implementations" in line]
    made = adapting.made(calling, taken)
    return Convention(
        adapting.live(calling, taken, target),
        tuple(imports),
        "" if plain else adapting.body(calling, taken),
        made.replace("(call", "(target") if plain else made,
        tuple(_of_function_told(calling, taken, wary)),
        shape,
        one_set_of_ids="key_segments" in taken.drop and "query_segments" in taken.names,
        named=_questions(taken.named),
    )


def _of_function_told(calling: Calling, taken: Taken, wary: str) -> Iterator[Finding]:
    seen = calling.evidence
    yield Finding("kind", "function")
    yield Finding("framework", calling.framework, seen["framework"])
    roles = ", ".join(f"{own} is {role}" if own != role else own for own, role in _named(calling))
    layout = calling.axes if calling.axes == calling.output else f"{calling.axes} -> {calling.output}"
    if UNSURE in seen:
        yield undetermined("arguments", f"{roles}: {seen[UNSURE]}")
        yield undetermined("layout", f"{layout} was taken: see arguments")
    else:
        yield Finding("arguments", roles, seen["arguments"])
        yield Finding("layout", layout, seen["layout"])
    own = dict(taken.names)
    own |= {
        o: n for o, n in (("attn_mask", taken.bool_mask or taken.float_mask), ("key_padding_mask", taken.padding)) if n
    }
    if own:
        told = ", ".join(name if name == option else f"{name} ({option})" for option, name in own.items())
        yield Finding("options", f"{len(own)}", told)
    if wary and (taken.bool_mask or taken.padding):
        yield undetermined("mask polarity", f"as masks and other parameters were tried, {wary}")
    elif taken.bool_mask or taken.padding:
        flipped = taken.flipped if taken.bool_mask else taken.padding_flipped
        yield Finding("mask polarity", MASKED_OUT if flipped else MAY_ATTEND, taken.seen)
        yield Finding("mask form", _form_told(taken))
    for extra in taken.extras:
        yield Finding(f"part {extra.position} of its answer", extra.name.replace("_", " "), f"axes {extra.axes}")


def _named(calling: Calling) -> Iterator[tuple[str, str]]:
    return zip(calling.inputs, calling.order, strict=True)


def _form_told(taken: Taken) -> str:
    if not taken.bool_mask:
        return "(B, Lk)"
    return f"{taken.form}{', spelled out' if taken.form is MaskForm.FULL else ''}"


QUESTIONS = {
    "bool_mask": "boolean mask",
    "key_padding_mask": "key padding",
    "is_causal": "causal flag",
    "scale": "given scale",
    "dropout_p": "dropout",
    "window_size": "window",
    "softcap": "softcap",
    "rotary_base": "rotary embedding",
    "query_start": "query start",
    "alibi_slopes": "ALiBi",
    "relative_bias": "relative bias",
    "sinks": "sinks",
    "add_zero_attn": "key of zeros",
    "head_gates": "head gates",
    "query_segments": "segments",
    "cu_seqlens_q": "cumulative lengths",
}
"""What is asked through which option."""


def _questions(options: Iterable[str]) -> frozenset[str]:
    return frozenset(QUESTIONS[option] for option in options if option in QUESTIONS)
