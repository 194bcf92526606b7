"""Inputs of three axes, which a function documents next to those of four: all heads side by side, or one head alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import answer, repeatable, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, PROBED, ClaimCheck
from attention_conformance.implementations.discovery.documented import as_written, documents_of
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall, options_of
from attention_conformance.implementations.discovery.functions.function_masks import OF_MASKS
from attention_conformance.implementations.discovery.shipped.shipped_others import SIDE_BY_SIDE
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS
from attention_conformance.spec.cases import Padding
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES

OF_QUERY = r"\bq(?:uery|ueries)?\b[^()\n]{0,20}\("
AXES = {n: re.compile(OF_QUERY + r"[^(),.]+" + r",[^(),.]+" * (n - 1) + r"\)", re.IGNORECASE) for n in (3, 4)}
"""A query and its axes, in documentation."""
BY_RANK = re.compile(r"\b3[- ]?D\b[\s\S]*\b4[- ]?D\b|\b4[- ]?D\b[\s\S]*\b3[- ]?D\b", re.IGNORECASE)
"""Words for inputs of both kinds."""
OF_QUERIES, OF_KEYS = {"q_num_heads", *HEAD_COUNTS}, {"kv_num_heads", "num_kv_heads", "k_num_heads", "n_kv_heads"}
LENGTHS = replace(PLAIN, padding=Padding.LENGTHS)
ONE_HEAD = "without an axis of heads, (B, L, d)"


@dataclass(frozen=True)
class ThreeAlone:
    """A function that takes inputs of three axes alone, though others would be broadcast."""

    function: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, *more: Any, **options: Any) -> Any:
        """Its answer.

        Raises:
            ValueError: the query has another number of axes.
        """
        if query.ndim != 3:
            raise ValueError(f"by its documentation a query has 3 axes, and this one has {query.ndim}")
        return self.function(query, key, value, *more, **options)


def refuses_masks(made: Implementation, function: Callable[..., object], device: str) -> bool:
    """Whether a mask among the parameters of a function is not claimed by the candidate that is made of it.

    Or lengths are, and raise: to a step that broadcasts, such as torch's, an axis more is one of samples.
    """
    features = safe_call(lambda: options_of(signature_of(function)).features).value or frozenset()
    unclaimed = features & OF_MASKS and not made.claims.features & {*OF_MASKS, Feature.KEY_PADDING}
    return bool(unclaimed) or _raises_with_lengths(made, device)


def _raises_with_lengths(made: Implementation, device: str) -> bool:
    fitted = fit(LENGTHS, made.claims)
    if Feature.VALID_LENS not in made.claims or isinstance(fitted, Unsupported):
        return False
    dtype = next((each for each in PROBED if each in made.claims.dtypes), PROBED[0])
    problem = build(fitted, dtype).forward_only()
    return bool(repeatable(lambda: answer(made.run, problem.fresh(), device)).error)


def with_three_alone(function: Callable[..., Any], made: Implementation) -> ThreeAlone | None:
    """The function, if its documentation has queries of three axes, and of no four; if of no four, for its lengths."""
    text = "\n".join(documents_of(getattr(as_written(function), "__wrapped__", function)))
    stated = AXES[3].search(text) or Feature.VALID_LENS in made.claims
    return ThreeAlone(function) if stated and not AXES[4].search(text) else None


@dataclass(frozen=True)
class ThreeAxes:
    """A call with inputs of three axes where nothing else has an axis; of four elsewhere.

    Attributes:
        call: with inputs of four axes.
        counts: its parameters for the numbers of heads of queries and of keys; none: each head is a sample.
    """

    call: RenamedCall
    counts: tuple[str, ...]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The answer, with an axis of heads.

        Raises:
            ValueError: its output has another shape than (B, Lq, width).
        """
        heads, of_keys = query.shape[1], key.shape[1]
        if any(hasattr(each, "shape") for each in options.values()) or (not self.counts and heads != of_keys):
            return self.call(query, key, value, **options)
        given = dict(zip(self.counts, (heads, of_keys), strict=False))
        answer = self.call.giving(given)(*(self._flat(x) for x in (query, key, value)), **options)
        output, *others = answer if isinstance(answer, tuple | list) else (answer,)
        shape = (*query.shape[:3], value.shape[-1])
        flat = self._shape(shape)
        if tuple(output.shape) != flat:
            raise ValueError(f"its output has shape {tuple(output.shape)}, expected {flat}")
        back = self._back(output, shape)
        return (back, *(self._part(each, query) for each in others)) if isinstance(answer, tuple | list) else back

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        batch, heads, length, width = shape
        return (batch, length, heads * width) if self.counts else (batch * heads, length, width)

    def _flat(self, x: Any) -> Any:
        return (x.swapaxes(1, 2) if self.counts else x).reshape(self._shape(x.shape))

    def _back(self, output: Any, shape: tuple[int, ...]) -> Any:
        batch, heads, length, width = shape
        return output.reshape((batch, length, heads, width)).swapaxes(1, 2) if self.counts else output.reshape(shape)

    def _part(self, part: Any, query: Any) -> Any:
        """Another part of an answer, with an axis of heads."""
        shape = tuple(getattr(part, "shape", ()))
        together = not self.counts and shape[:1] == (query.shape[0] * query.shape[1],)
        return part.reshape((*query.shape[:2], *shape[1:])) if together else part


def with_three_axes(check: ClaimCheck, written: Any) -> dict[str, ThreeAxes]:
    """The other way to call it, by a name for messages; none where its documentation has no such inputs."""
    call, text = check.function, inspect.getdoc(written) or ""
    documented = BY_RANK.search(text) or all(axes.search(text) for axes in AXES.values())
    if not isinstance(call, RenamedCall) or not documented or check.claims.premises != NO_PREMISES:
        return {}
    signature = safe_call(lambda: signature_of(written)).value
    names = [] if signature is None else [p.name for p in signature.parameters.values() if not p.default]
    counts = [next((name for name in names if name in known), "") for known in (OF_QUERIES, OF_KEYS)]
    given = tuple(name for name in counts if name)
    return {SIDE_BY_SIDE if given else ONE_HEAD: ThreeAxes(call, given)}
