"""Claiming: the claims that findings amount to.

What has an effect is claimed, be the effect the specification's or not: the suite then says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attention_conformance.implementations.discovery.audit.findings import ABSENT, LOST, Facts
from attention_conformance.implementations.discovery.audit.masks import MASKED_OUT
from attention_conformance.spec.features import Conventions, Feature, Scope
from attention_conformance.spec.problem import DTYPES

FEATURES: Mapping[str, Feature] = {
    "key and value apart": Feature.KEY_VALUE,
    "Lq other than Lk": Feature.CROSS,
    "d_v other than d_k": Feature.VALUE_WIDTH,
    "width of the model": Feature.MODEL_WIDTH,
    "widths of the inputs": Feature.INPUT_WIDTHS,
    "given scale": Feature.SCALE,
    "grouped heads": Feature.GROUPED,
    "boolean mask": Feature.BOOL_MASK,
    "float mask": Feature.FLOAT_MASK,
    "key padding": Feature.KEY_PADDING,
    "valid lengths": Feature.VALID_LENS,
    "causal flag": Feature.CAUSAL,
    "weights of each head": Feature.WEIGHTS,
    "averaged weights": Feature.AVERAGED_WEIGHTS,
    "log-sum-exp": Feature.LOG_SUM_EXP,
    "dropout": Feature.DROPOUT,
    "evaluation mode": Feature.EVALUATION,
    "gradients": Feature.GRADIENTS,
    "gradient of a float mask": Feature.MASK_GRADIENT,
    "window": Feature.WINDOW,
    "softcap": Feature.SOFTCAP,
    "rotary embedding": Feature.ROTARY,
    "query start": Feature.QUERY_START,
    "ALiBi": Feature.ALIBI,
    "relative bias": Feature.RELATIVE_BIAS,
    "sinks": Feature.SINKS,
    "key of zeros": Feature.ZERO_ATTN,
    "learned key and value": Feature.BIAS_KV,
    "head gates": Feature.HEAD_GATES,
    "segments": Feature.SEGMENTS,
    "cumulative lengths": Feature.CUMULATIVE_LENGTHS,
    "containment of NaN": Feature.CONTAINMENT,
    "views": Feature.VIEWS,
    "empty sizes": Feature.EMPTY_SIZES,
}
"""The questions whose answer is that a feature is there."""
PARAMETERS: Mapping[str, Feature] = {
    "biases": Feature.BIAS,
    "output projection": Feature.OUTPUT_PROJECTION,
    "output bias": Feature.OUTPUT_BIAS,
}


@dataclass(frozen=True)
class Choice:
    """A question whose answer is a convention: its key, and the answers as conventions spell them.

    Attributes:
        feature: it matters where this is claimed; None: always.
        beside: and one of these, if any.
    """

    key: str
    question: str
    feature: Feature | None
    spelled: Mapping[str, str]
    beside: frozenset[Feature] = frozenset()

    def matters(self, claimed: frozenset[Feature]) -> bool:
        """Whether anything asks for it of who claims these features."""
        return (self.feature is None or self.feature in claimed) and (not self.beside or bool(self.beside & claimed))


_ROWS = {"zeros": "zeros", "nan": "nan", "uniform": "uniform"}
CHOICES = (
    Choice(
        "bool-mask", "mask polarity", Feature.BOOL_MASK, {MASKED_OUT: "masked-out", "True may attend": "may-attend"}
    ),
    Choice("causal-alignment", "causal alignment", Feature.CAUSAL, {x: x for x in ("top-left", "bottom-right")}),
    Choice(
        "causal-with-mask",
        "causal flag beside a mask",
        Feature.CAUSAL,
        {"both hold": "intersect", "refused": "error", "both hold, or refused": "either"},
        frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK}),
    ),
    Choice("empty-row-bool", "row emptied by a boolean mask", Feature.BOOL_MASK, _ROWS),
    Choice("empty-row-float", "row emptied by minus infinity", Feature.FLOAT_MASK, _ROWS),
    Choice("empty-row-padding", "sample emptied by padding", Feature.KEY_PADDING, _ROWS),
    Choice("empty-row-causal", "row emptied by the causal flag", Feature.CAUSAL, _ROWS),
    Choice("softmax-precision", "softmax of float64", None, {x: x for x in ("working", "float32")}),
    Choice("group-order", "group order", Feature.GROUPED, {x: x for x in ("consecutive", "tiled")}),
    Choice("window-count", "window", Feature.WINDOW, {x: x for x in ("besides", "including")}),
    Choice("rotary-pairing", "rotary embedding", Feature.ROTARY, {x: x for x in ("halves", "interleaved")}),
    Choice("sinusoid-order", "sinusoid order", Feature.SINUSOIDS, {x: x for x in ("interleaved", "halves")}),
    Choice("alibi-rule", "ALiBi slopes of 6 heads", Feature.ALIBI_SLOPES, {x: x for x in ("interleaved", "geometric")}),
    Choice(
        "returned-weights",
        "returned weights",
        Feature.DROPOUT,
        {x: x for x in ("before-dropout", "after-dropout")},
        frozenset({Feature.WEIGHTS, Feature.AVERAGED_WEIGHTS}),
    ),
    Choice("log-sum-exp-base", "log-sum-exp", Feature.LOG_SUM_EXP, {"base e": "e", "base 2": "2"}),
)


def scope(facts: Facts) -> Scope:
    """The level that was found."""
    return Scope(facts.answer("level"))


def features(facts: Facts) -> frozenset[Feature]:
    """What is offered, rightly or not."""
    return frozenset(_features(facts))


def _features(facts: Facts) -> Iterator[Feature]:
    yield Feature.CORE
    if facts.answer("heads") != "one":
        yield Feature.HEADS
    if scope(facts) is Scope.MODULE:
        yield Feature.PROJECTIONS
        yield from (f for name, f in PARAMETERS.items() if name in facts.answer("parameters").split(", "))
    for question, feature in FEATURES.items():
        if question in facts.found and facts.found[question].answer not in (ABSENT, LOST, "always"):
            yield feature


def settings(facts: Facts) -> dict[str, str]:
    """The conventions that were found and are not the specification's defaults, by their keys."""
    defaults = dict(Conventions().items())
    told = {choice.key: choice.spelled.get(facts.answer(choice.question), "") for choice in CHOICES}
    return {key: value for key, value in told.items() if value and value != defaults[key]}


def dtypes(facts: Facts) -> tuple[str, ...]:
    """The dtypes that were answered in kind."""
    return tuple(dtype for dtype in DTYPES if dtype in facts.answer("dtypes").split(", "))
