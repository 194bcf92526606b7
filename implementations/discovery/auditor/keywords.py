"""Keywords: which options a function takes, under which names and in which form, by their names and their effects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.discovery.auditor import probe_masks, probe_scores
from attention_conformance.implementations.discovery.auditor.findings import (
    ABSENT,
    ALWAYS,
    MASKED_OUT,
    MAY_ATTEND,
    Facts,
)
from attention_conformance.implementations.discovery.extras import Extra, find_extras
from attention_conformance.implementations.discovery.functions.calls import EXTENTS, FunctionCall
from attention_conformance.implementations.discovery.probe import (
    BATCH,
    HEADS,
    KEYS,
    NO_ANSWER,
    QUERIES,
    WIDTHS,
    Interface,
    Recorder,
    Run,
    Subject,
)
from attention_conformance.implementations.discovery.signatures import (
    Options,
    is_variadic,
    known_names,
    read_options,
    signature_of,
)
from attention_conformance.implementations.discovery.vocabulary import (
    DISPENSABLE,
    FOR_BOTH,
    KWARGS_OF_FUNCTION,
    OPTIONS,
    PARTNERS,
    WEIGHTS_RETURNED,
    MaskForm,
)
from attention_conformance.spec.cases import MaskShape

MASKS = ("bool_mask", "float_mask", "key_padding_mask")
MASK_FORMS: Mapping[MaskForm, MaskShape] = {
    MaskForm.GIVEN: MaskShape.FULL,
    MaskForm.FULL: MaskShape.FULL,
    MaskForm.FLAT: MaskShape.FULL,
    MaskForm.SAMPLE: MaskShape.SAMPLE,
    MaskForm.SHARED: MaskShape.SHARED,
}
"""The forms in which a mask is tried, and along which axes it may differ then."""
OTHER_RANKS = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
"""Masks of one and of three axes, which some functions refuse."""
NO_FACTS = Facts({})
SIZES = {"B": BATCH, "H": HEADS, "Q": QUERIES, "K": KEYS}


@dataclass(frozen=True)
class Keywords:
    """What a function takes in addition to its inputs, and returns next to its output.

    Attributes:
        options: its own names for the suite's options, masks included, and what it is given in each call.
        masked_out, padding_masked_out: whether True means masked out.
        form: the shape in which it takes attention masks.
        extras: what it returns after its output.
        returns_tuple: whether its answer is a tuple, or a list, that begins with the output.
        evidence: what showed the polarity of its masks.
    """

    options: Options
    masked_out: bool = False
    padding_masked_out: bool = False
    form: MaskForm = MaskForm.GIVEN
    extras: tuple[Extra, ...] = ()
    returns_tuple: bool = False
    evidence: str = ""

    @property
    def bool_mask(self) -> str:
        """Its name for a boolean mask, or nothing."""
        return self.options.spelled.get("bool_mask", "")

    @property
    def mask(self) -> str:
        """Its name for attention masks of any kind, or nothing."""
        return self.bool_mask or self.options.spelled.get("float_mask", "")

    @property
    def padding(self) -> str:
        """Its name for a padding mask, or nothing."""
        return self.options.spelled.get("key_padding_mask", "")

    @property
    def names(self) -> dict[str, str]:
        """Its own names for the options that are no masks."""
        spelled = self.options.spelled
        return {o: spelled[o] for o in OPTIONS if o in spelled and o not in (*MASKS, *WEIGHTS_RETURNED)}

    @property
    def left_out(self) -> tuple[str, ...]:
        """The options that are left out, because it has no parameter for them."""
        return tuple(option for option in DISPENSABLE if option not in self.options)

    @property
    def one_for_both(self) -> tuple[str, ...]:
        """The options about keys that are left out, because what is given for queries counts for both."""
        return tuple(PARTNERS[o] for o in FOR_BOTH if PARTNERS[o] in self.left_out and o in self.options)

    def with_names(self, names: Mapping[str, str], without: tuple[str, ...] = ()) -> Keywords:
        """The same with other names for some options, and without some."""
        rest = {option: name for option, name in self.options.spelled.items() if option not in without}
        return replace(self, options=replace(self.options, spelled={**rest, **names}))


@dataclass(frozen=True)
class Function:
    """A function, how it is called, and how a `run` is made of it."""

    function: Callable[..., Any]
    call: FunctionCall
    run_of: Callable[[FunctionCall, Keywords, Callable[..., Any]], Run]
    device: str

    def subject(self, keywords: Keywords, shape: MaskShape = MaskShape.FULL) -> Subject:
        """The function, called with these keywords."""
        usual = self.call.extent == EXTENTS[0]
        interface = Interface(width=WIDTHS[0] if usual else self.call.extent, mask_shape=shape)
        return Subject(self.run_of(self.call, keywords, self.function), interface, "float32", self.device)


def find_keywords(function: Function, by_effect: bool = True) -> tuple[Keywords, MaskShape]:
    """What the function takes and returns, and along which axes its attention mask may differ.

    Without `by_effect`, only from the names of its parameters.
    """
    keywords, unknown = _by_names(function)
    answer = _plain_answer(function, keywords)
    if answer is NO_ANSWER:
        keywords = replace(keywords, options=replace(keywords.options, always={}))  # it refuses what it names
        answer = _plain_answer(function, keywords)
    if isinstance(answer, tuple | list):
        keywords = replace(keywords, returns_tuple=True, extras=find_extras(answer, SIZES, rearranged=True))
    shape = MaskShape.FULL
    if not by_effect:
        return keywords, shape
    if keywords.mask:
        keywords, shape = _with_mask_form(function, keywords)
    for name in unknown:
        keywords, shape = _with_unknown(function, keywords, shape, name)
    if keywords.padding:
        finding = probe_masks.key_padding(function.subject(keywords))
        evidence = keywords.evidence or finding.evidence
        keywords = replace(keywords, padding_masked_out=finding.answer == MASKED_OUT, evidence=evidence)
    return keywords, shape


def _by_names(function: Function) -> tuple[Keywords, list[str]]:
    """What follows from the names of the parameters, and the names that are not known."""
    call, signature = function.call, signature_of(function.function)
    rest = [p for n, p in signature.parameters.items() if n not in (*call.inputs, call.heads)]
    single = [p for p in rest if not is_variadic(p)]
    by_keyword = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None if p.name in call.always else p.default)
        for p in single
    ]
    kwargs = [p for p in rest if p.kind is inspect.Parameter.VAR_KEYWORD]
    options = read_options(inspect.Signature([*by_keyword, *kwargs]), (), KWARGS_OF_FUNCTION)
    unknown = [p.name for p in single if p.name not in known_names(signature) and "drop" not in p.name]
    return Keywords(replace(options, always=options.weights_returned)), unknown


def _plain_answer(function: Function, keywords: Keywords) -> Any:
    """What the function returns for a plain problem."""
    recorder = Recorder(function.function)
    subject = replace(function, function=recorder).subject(replace(keywords, extras=(), returns_tuple=False))
    subject.reply(subject.problem())
    return recorder.answer


def _with_mask_form(function: Function, keywords: Keywords) -> tuple[Keywords, MaskShape]:
    """With the form in which masks have their effect; as the mask was given where there is none."""
    for form, shape in MASK_FORMS.items():
        formed = replace(keywords, form=form)
        subject = function.subject(formed, shape)
        if keywords.bool_mask:
            finding = probe_masks.boolean_mask(subject)
            if finding.answer in (MAY_ATTEND, MASKED_OUT):
                formed = replace(formed, masked_out=finding.answer == MASKED_OUT, evidence=finding.evidence)
                if form is not MaskForm.GIVEN or _broadcasts(function.subject(formed)):
                    return formed, shape
        else:
            added = next(probe_masks.additive(subject, NO_FACTS))
            if added.determined and added.answer != ABSENT:
                return formed, shape
    as_padding = keywords.with_names({"key_padding_mask": keywords.mask}, without=("bool_mask", "float_mask"))
    if probe_masks.key_padding(function.subject(as_padding)).answer in (MAY_ATTEND, MASKED_OUT):
        return as_padding, MaskShape.FULL
    return keywords, MaskShape.FULL


def _broadcasts(subject: Subject) -> bool:
    """Whether masks of four axes and of two broadcast as they should, and no other is misread; refusing is fine."""
    errors = probe_masks.mask_shapes(subject, MAY_ATTEND)
    return all(not error or (shape in OTHER_RANKS and error.refusal) for shape, error in errors.items())


def _with_unknown(function: Function, keywords: Keywords, shape: MaskShape, name: str) -> tuple[Keywords, MaskShape]:
    """With a parameter of an unknown name: it is given a mask, then True, then a scale."""
    if not keywords.mask:
        masked, mask_shape = _with_mask_form(function, keywords.with_names({"bool_mask": name, "float_mask": name}))
        boolean = probe_masks.boolean_mask(function.subject(masked, mask_shape))
        if masked.padding == name or boolean.answer != ABSENT:
            return masked, mask_shape
    for option in ("is_causal", "scale"):
        if option not in keywords.options:
            named = keywords.with_names({option: name})
            subject = function.subject(named)
            causal = option == "is_causal"
            finding = probe_masks.causal_flag(subject) if causal else next(probe_scores.scale(subject, NO_FACTS))
            if finding.determined and finding.answer not in (ABSENT, ALWAYS):
                return named, shape
    return keywords, shape
