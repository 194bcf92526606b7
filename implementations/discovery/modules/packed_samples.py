"""Modules that take all samples in one sequence, (B * L, E), with where each begins: documents that are packed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.implementations.discovery.vocabulary import words_of

if TYPE_CHECKING:
    from attention_conformance.implementations.adapters.as_built import AsBuilt
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
    from attention_conformance.spec.problem import Problem

OF_BOUNDS, OF_LENGTHS = {"cu", "cum", "cumulative"}, {"seqlen", "seqlens", "seq", "len", "lens", "length", "lengths"}
KEY_ENDINGS = ("k", "kv", "key", "keys")
"""Words in the names of the bounds of documents and of their lengths, and how names of those of keys end."""
SHORTER_DOCUMENT = "with a shorter document before the others"
"""What every forward promises that takes where documents begin."""
BEHIND_OTHERS = (SHORTER_DOCUMENT, "with a shorter and an empty document before the others")
"""By the number of other documents, from 1."""
CUT = 2
"""Tokens that a document lacks which stands before the others."""


@dataclass(frozen=True)
class Packing:
    """How samples are packed.

    Attributes:
        bounds: the parameters that take where each document begins, (B + 1,), and the end of the last.
        longest: those that take the length of the longest one.
        others: number of other documents before those of the problem: a shorter one, and one without tokens; where
            queries and keys have bounds each, this one is without keys alone.
    """

    bounds: tuple[str, ...]
    longest: tuple[str, ...] = ()
    others: int = 0

    def packed(self, x: torch.Tensor, of_keys: bool) -> torch.Tensor:
        """(B, L, E) as (B * L, E), behind the other documents."""
        before = sum(self._before(x.shape[1], of_keys))
        return torch.cat([x.new_ones(before, x.shape[-1]), x.flatten(0, 1)])

    def _before(self, tokens: int, of_keys: bool) -> list[int]:
        """The lengths of the other documents."""
        return [max(0, tokens - CUT), 0 if of_keys or len(self.bounds) == 1 else CUT][: self.others]

    def counts(self, query: torch.Tensor, key: torch.Tensor) -> dict[str, Any]:
        """What its parameters are given for inputs (B, L, E)."""
        found: dict[str, Any] = {}
        for name in (*self.bounds, *self.longest):
            of_keys = name.lower().endswith(KEY_ENDINGS)
            x = key if of_keys else query
            lengths = [0, *self._before(x.shape[1], of_keys), *[x.shape[1]] * len(x)]
            ends = torch.tensor(lengths, dtype=torch.int32, device=x.device).cumsum(0, dtype=torch.int32)
            found[name] = ends if name in self.bounds else max(lengths)
        return found

    def unpacked(self, call: Callable[[], Any], batch: int, tokens: int) -> Any:
        """The answer with an output (B, L, E) for a packed one."""
        answer = call()
        first, *rest = answer if isinstance(answer, tuple) else (answer,)
        output = first[sum(self._before(tokens, False)) :].unflatten(0, (batch, tokens))
        return (output, *rest) if isinstance(answer, tuple) else output


def packing_of(signature: inspect.Signature) -> tuple[inspect.Signature, Packing | None]:
    """How a forward takes packed samples by the names of what it needs, and the rest; None where it needs no bounds."""
    named = {name: words_of(name) for name, p in signature.parameters.items() if required(p)}
    bounds = tuple(name for name, words in named.items() if words & OF_BOUNDS and words & OF_LENGTHS)
    longest = tuple(name for name, words in named.items() if "max" in words and words & OF_LENGTHS)
    if not bounds:
        return signature, None
    rest = [p for name, p in signature.parameters.items() if name not in (*bounds, *longest)]
    return signature.replace(parameters=rest), Packing(bounds, longest)


def behind_others(run: AsBuilt, call: ModuleCall, problem: Problem | None, device: str) -> dict[str, ModuleCall]:
    """The call with other documents before those of the problem, where it takes documents, and these."""
    if call.packing is None or problem is None:
        return {}
    ways = {way: replace(call, packing=replace(call.packing, others=n)) for n, way in enumerate(BEHIND_OTHERS, 1)}
    return {way: each for way, each in ways.items() if not safe_call(partial(run.output, problem, device, each)).error}
