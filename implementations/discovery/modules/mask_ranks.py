"""Ranks of masks: other shapes than the judged one in which a mask of the same name is accepted, and its effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import polarised
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import Booleans, changes, rows, sees_no_later_key
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.modules.self_options import is_alone_with, without_context
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

PER_KEY = "(B, Lk)"
SHAPES = (PER_KEY, "(B, 1, 1, Lk)", "(Lq, Lk)", "(B, Lq, Lk)", "(B, 1, Lq, Lk)", "(B, H, Lq, Lk)")
"""Of masks as they are given in the field."""
OF_PADDING = {"attention_mask", "padding_mask", "pad_mask", "key_padding_mask", "key_mask", "src_key_padding_mask"}
"""Names under which a mask (B, Lk) is known to hide keys."""
GIVEN = ((True, False), (False, True), (1.0, 0.0), (0.0, 1.0), (0.0, -inf), (0.0, -1e9))
"""What stands for a visible key, and what for a hidden one."""
BOOL = torch.bool
MASKS = ("bool_mask", "float_mask", "key_padding_mask")
AT = (2, 5, 12)
"""Keys that are changed."""


@dataclass(frozen=True)
class Ranked:
    """Masks of one shape, drawn for the sizes of the plain case, and what a module does with them.

    Attributes:
        shape: one of `SHAPES`.
        name: of the parameter that takes the mask.
        check: the module, called without any mask.
        seen: the mask, with True for visible keys.
    """

    shape: str
    name: str
    check: ClaimCheck
    seen: Booleans

    def given(self, shown: float, hidden: float) -> ClaimCheck:
        """The module, called with this mask in every call."""
        call: Any = self.check.function
        mask = torch.where(torch.from_numpy(self.seen), torch.tensor(shown), torch.tensor(hidden))
        return replace(self.check, function=replace(call, always={**call.always, self.name: mask}))

    @property
    def visible(self) -> Booleans:
        """Which keys each query of each sample may see in some head, (B, Lq, Lk)."""
        batch, length = PLAIN.sizes.batch, PLAIN.sizes.key_length
        of_samples = self.seen if self.seen.ndim == 3 else self.seen[:, None] if self.shape == PER_KEY else self.seen
        of_samples = np.asarray(of_samples.any(1)) if of_samples.ndim == 4 else of_samples
        return np.broadcast_to(of_samples, (batch, length, length))

    def is_right(self, given: ClaimCheck) -> bool:
        """Whether a changed key changes the queries that may see it and no others, but for what hidden tokens see."""
        whole = self.visible
        causal = given.claims.premises.causal or sees_no_later_key(self.check)
        whole = np.asarray(np.tril(whole) if causal else whole)
        compared = 0
        for key, changed in changes(given, PLAIN, each_sample=True, at=AT):
            others = np.arange(changed.shape[-1]) != key
            kept = self.seen if self.shape == PER_KEY else np.ones_like(changed)
            if changed.shape != whole.shape[:2] or ((changed != whole[..., key]) & others & kept).any():
                return False
            compared += 1
        return compared > 0

    def effect(self) -> str:
        """What it does where it is accepted and has no known meaning; empty where it has one, or raises."""
        given = [self.given(*each) for each in GIVEN]
        without = self.check.run(PLAIN)
        answers = [each.run(PLAIN) for each in given]
        accepted = [(each, answer) for each, answer in zip(given, answers, strict=True) if _is_finite(each)]
        if without.error or not accepted or any(self.is_right(each) for each, _ in accepted):
            return ""
        changing = any(not near_outputs(answer, without, self.check.dtype) for _, answer in accepted)
        return "changes the answer, but hides no keys" if changing else "changes nothing"


def _is_finite(check: ClaimCheck) -> bool:
    fitted = fit(PLAIN, check.claims)
    return not isinstance(fitted, Unsupported) and rows(check, build(fitted, check.dtype).forward_only()) is not None


@dataclass(frozen=True)
class PerKey:
    """A call whose masks of keys, (B, 1, 1, Lk), come as (B, Lk)."""

    call: ModuleCall
    name: str

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        mask = given.get("attn_mask")
        if mask is None or mask.ndim != 4 or mask.shape[1:3] != (1, 1):
            return self.call(module, given, problem)
        mask = polarised(mask[:, 0, 0].expand(len(given["query"]), -1), self.call.polarity)
        number = self.call.true_as
        mask = given["query"].new_zeros(mask.shape).masked_fill(mask, number) if number and mask.dtype is BOOL else mask
        rest = {name: each for name, each in given.items() if name != "attn_mask"}
        call = replace(self.call, always={**self.call.always, self.name: mask})
        return call(module, rest, problem.but(attn_mask=None))


def ranked_masks(call: ModuleCall, check: ClaimCheck) -> Iterator[Ranked]:
    """The masks of all shapes under the name of its attention mask; nothing where it has none, or another layout."""
    spelled = call.options.named.spelled
    name = next((spelled[option] for option in MASKS if option in spelled), "")
    claimed = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING} & check.claims.features
    listed = call.options.lists_biases and name == spelled.get("float_mask")
    if (
        not name
        or not claimed
        or listed
        or call.tables.get(name)
        or call.length_first
        or call.spatial
        or call.each_sample
    ):
        return
    if any(is_alone_with(check.claims, feature) for feature in claimed):
        check = without_context(check)
    sizes, draw = PLAIN.sizes, np.random.default_rng(7)
    extents = {"B": sizes.batch, "H": sizes.num_heads, "Lq": sizes.query_length, "Lk": sizes.key_length, "1": 1}
    judged = {PER_KEY} if spelled.get("key_padding_mask") == name else {str(call.form)}
    for shape in (each for each in SHAPES if each not in judged):
        seen = draw.random([extents[each] for each in shape[1:-1].split(", ")]) < 0.6
        seen[..., 0] = True  # no row without keys, be it causal or not
        yield Ranked(shape, name, check, seen)


def unknown_masks(call: ModuleCall, check: ClaimCheck) -> dict[str, str]:
    """Its own name for a mask that is accepted in a shape in which it agrees with no meaning, and what it does."""
    found = {(each.name, each.shape): each.effect() for each in ranked_masks(call, check)}
    return {name: f"not judged as {shape}: it {does}" for (name, shape), does in found.items() if does}


def promised_per_key(call: ModuleCall, check: ClaimCheck) -> PerKey | None:
    """The call with masks (B, Lk), where the name of its mask promises that these hide keys, and they do not."""
    first = next(ranked_masks(call, check), None)
    promised = first is not None and first.shape == PER_KEY and first.name in OF_PADDING
    return PerKey(call, first.name) if first is not None and promised and first.effect() else None
