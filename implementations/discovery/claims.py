"""Claims: what findings amount to.

What has an effect is claimed, be it the effect that the specification asks for or not: the suite then reports what is
wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attention_conformance.implementations.discovery.extra_options import EXTRA_OPTIONS
from attention_conformance.implementations.discovery.findings import ABSENT, LOST, MASKED_OUT, MAY_ATTEND, Facts
from attention_conformance.spec.features import Conventions, Feature, Scope
from attention_conformance.spec.problem import DTYPES

FEATURES: Mapping[str, Feature] = {
    "separate key and value": Feature.KEY_VALUE,
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
    **{option.topic: option.feature for option in EXTRA_OPTIONS},
    "containment of NaN": Feature.CONTAINMENT,
    "views": Feature.VIEWS,
    "empty sizes": Feature.EMPTY_SIZES,
}
"""The topics whose finding is that a feature is offered."""
TOPICS: Mapping[Feature, str] = {feature: topic for topic, feature in FEATURES.items()}
PARAMETERS: Mapping[str, Feature] = {
    "biases": Feature.BIAS,
    "output projection": Feature.OUTPUT_PROJECTION,
    "output bias": Feature.OUTPUT_BIAS,
}


@dataclass(frozen=True)
class Choice:
    """A topic whose answer is a convention.

    Attributes:
        key: of the convention.
        feature: it matters where this is claimed; None: always.
        answers: the values of the convention, by the known answers.
        combined_with: it matters only together with one of these, if there are any.
    """

    key: str
    topic: str
    feature: Feature | None
    answers: Mapping[str, str]
    combined_with: frozenset[Feature] = frozenset()

    def matters(self, claimed: frozenset[Feature]) -> bool:
        """Whether a clause depends on it, for an implementation that claims these features."""
        combined = not self.combined_with or bool(self.combined_with & claimed)
        return combined and (self.feature is None or self.feature in claimed)

    def value(self, facts: Facts) -> str:
        """The convention that was found, or nothing."""
        return self.answers.get(facts.answer(self.topic), "")


def _same(*answers: str) -> Mapping[str, str]:
    return {answer: answer for answer in answers}


_ROWS = _same("zeros", "nan", "uniform")
CHOICES = (
    Choice("bool-mask", "mask polarity", Feature.BOOL_MASK, {MASKED_OUT: "masked-out", MAY_ATTEND: "may-attend"}),
    Choice("causal-alignment", "causal alignment", Feature.CAUSAL, _same("top-left", "bottom-right")),
    Choice(
        "causal-with-mask",
        "causal flag with a mask",
        Feature.CAUSAL,
        {"both hold": "intersect", "refused": "error", "both hold, or refused": "either"},
        frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK}),
    ),
    Choice("empty-row-bool", "row emptied by a boolean mask", Feature.BOOL_MASK, _ROWS),
    Choice("empty-row-float", "row emptied by minus infinity", Feature.FLOAT_MASK, _ROWS),
    Choice("empty-row-padding", "sample emptied by padding", Feature.KEY_PADDING, _ROWS),
    Choice("empty-row-causal", "row emptied by the causal flag", Feature.CAUSAL, _ROWS),
    Choice("softmax-precision", "softmax of float64", None, _same("working", "float32")),
    Choice("group-order", "group order", Feature.GROUPED, _same("consecutive", "tiled")),
    Choice("window-count", "window", Feature.WINDOW, _same("excluding", "including")),
    Choice("rotary-pairing", "rotary embedding", Feature.ROTARY, _same("halves", "interleaved")),
    Choice("sinusoid-order", "sinusoid order", Feature.SINUSOIDS, _same("interleaved", "halves")),
    Choice("alibi-rule", "ALiBi slopes of 6 heads", Feature.ALIBI_SLOPES, _same("interleaved", "geometric")),
    Choice(
        "returned-weights",
        "returned weights",
        Feature.DROPOUT,
        _same("before-dropout", "after-dropout"),
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
    for topic, feature in FEATURES.items():
        if topic in facts.findings and facts.findings[topic].answer not in (ABSENT, LOST, "always"):
            yield feature


def settings(facts: Facts) -> dict[str, str]:
    """The conventions that were found and are not the specification's defaults, by their keys."""
    defaults = dict(Conventions().items())
    values = {choice.key: choice.value(facts) for choice in CHOICES}
    return {key: value for key, value in values.items() if value and value != defaults[key]}


def dtypes(facts: Facts) -> tuple[str, ...]:
    """The dtypes in which it takes arrays and answers."""
    return tuple(dtype for dtype in DTYPES if dtype in facts.answer("dtypes").split(", "))
