"""Taking: which options a function has, under which names and in which form, by their names and by what they do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attention_conformance.implementations.discovery.audit import masks, numbers
from attention_conformance.implementations.discovery.audit.adapting import Extra, MaskForm, Taken, live
from attention_conformance.implementations.discovery.audit.calling import EXTENTS, Calling
from attention_conformance.implementations.discovery.audit.findings import ABSENT, Facts, Finding
from attention_conformance.implementations.discovery.audit.posing import (
    BATCH,
    HEADS,
    KEYS,
    QUERIES,
    Asked,
    Form,
    Subject,
)
from attention_conformance.implementations.discovery.signatures import (
    NEEDLESS,
    OPTIONS,
    SWALLOWED_BY_FUNCTIONS,
    read_options,
    signature_of,
)
from attention_conformance.spec.cases import MaskShape

WEIGHING = {"need_weights": True, "average_attn_weights": False}
MASKS = ("bool_mask", "float_mask", "key_padding_mask")
FORMS: Mapping[MaskForm, MaskShape] = {
    MaskForm.GIVEN: MaskShape.FULL,
    MaskForm.FULL: MaskShape.FULL,
    MaskForm.FLAT: MaskShape.FULL,
    MaskForm.SAMPLE: MaskShape.SAMPLE,
    MaskForm.SHARED: MaskShape.SHARED,
}
"""The forms in which a mask is tried, and along which axes it may differ then."""
RANKS = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
"""Masks of one and of three axes, which some refuse."""
NOTHING_YET = Facts({})


@dataclass
class Spy:
    """Stands in for a function and keeps what it has answered."""

    function: Callable[..., Any]
    answer: Any = field(default=None)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Its answer."""
        self.answer = self.function(*inputs, **options)
        return self.answer


def find_taken(
    calling: Calling, function: Callable[..., Any], device: str, trying: bool = True
) -> tuple[Taken, MaskShape]:
    """What the function takes and gives besides, and along which axes its attention mask may differ.

    Without `trying`, only what the names of its parameters say.
    """
    taken, rest = _by_names(calling, function)
    spy = Spy(function)
    found = _answered(calling, taken, spy, device)
    if found is None:
        taken = replace(taken, always={})  # it does not bear what its parameters promise
        found = _answered(calling, taken, spy, device)
    taken = replace(taken, tupled=isinstance(found, tuple | list))
    if isinstance(found, tuple | list):
        taken = replace(taken, extras=tuple(_extras(calling, found)))
    shape = MaskShape.FULL
    if not trying:
        return taken, shape
    if name := taken.bool_mask or taken.float_mask:
        taken, shape = _masked(calling, taken, function, device, name)
    for name in rest:
        taken, shape = _tried(calling, taken, shape, function, device, name)
    return _padded(calling, taken, function, device), shape


def _by_names(calling: Calling, function: Callable[..., Any]) -> tuple[Taken, list[str]]:
    """What the names of the parameters say, and those that say nothing."""
    whole = signature_of(function)
    rest = [p for n, p in whole.parameters.items() if n not in (*calling.inputs, calling.heads)]
    inputs = [whole.parameters[n] for n in calling.inputs if n in whole.parameters]
    bearing = [p.replace(default=None) if p.name in calling.always else p for p in rest]
    signature = whole.replace(
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) if _single(p) else p for p in bearing]
    )
    options = read_options(signature, inputs, SWALLOWED_BY_FUNCTIONS)
    spelled = options.spelled
    taken = Taken(
        names={o: spelled[o] for o in OPTIONS if o in spelled and o not in (*MASKS, *WEIGHING)},
        bool_mask=spelled.get("bool_mask", ""),
        float_mask=spelled.get("float_mask", ""),
        padding=spelled.get("key_padding_mask", ""),
        always={spelled[option]: wish for option, wish in WEIGHING.items() if option in spelled},
        drop=tuple(option for option in NEEDLESS if option not in spelled),
        named=frozenset(spelled) - options.swallowed,
    )
    known = {name for names in OPTIONS.values() for name in names}
    unknown = [p.name for p in rest if _single(p) and p.name not in known and "drop" not in p.name]
    return taken, unknown


def _single(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _subject(calling: Calling, taken: Taken, function: Callable[..., Any], device: str) -> Subject:
    form = Form() if calling.extent == EXTENTS[0] else Form(width=calling.extent)
    return Subject(live(calling, taken, function), form, "float32", device)


def _answered(calling: Calling, taken: Taken, spy: Spy, device: str) -> Any:
    """What it gives back for a plain problem, as it is."""
    spy.answer = None
    subject = _subject(calling, replace(taken, extras=()), spy, device)
    subject.reply(subject.problem(Asked()))  # what the adapter makes of a tuple does not matter here
    return spy.answer


SIZES = {BATCH: "B", HEADS: "H", QUERIES: "Q", KEYS: "K", BATCH * HEADS: "N"}


def _extras(calling: Calling, answer: Any) -> Iterator[Extra]:
    """Weights, averaged weights and log-sum-exps among what follows the output, told by their extents."""
    kinds = {"BHQK": "weights", "BQK": "averaged_weights", "BHQ": "log_sum_exp"}
    seen = set()
    for position, part in enumerate(answer[1:], start=1):
        axes = "".join(SIZES.get(extent, "?") for extent in getattr(part, "shape", ()))
        name = kinds.get("".join(letter for letter in "BHQK" if letter in axes.replace("N", "BH")))
        usual = "N" not in axes or axes.startswith("N")
        if name and usual and "?" not in axes and len(axes.replace("N", "BH")) <= 4 and name not in seen:
            seen.add(name)
            yield Extra(position, name, axes)


def _masked(
    calling: Calling, taken: Taken, function: Callable[..., Any], device: str, name: str
) -> tuple[Taken, MaskShape]:
    """The form in which masks under this name do what they say; as they are given where none is found."""
    for form, shape in FORMS.items():
        formed = replace(taken, form=form)
        found = _boolean(formed, shape, calling, function, device) if taken.bool_mask else None
        if found is not None and found.answer in (masks.MAY_ATTEND, masks.MASKED_OUT):
            formed = replace(formed, flipped=found.answer == masks.MASKED_OUT, seen=found.evidence)
            if form is not MaskForm.GIVEN or _broadcasts(calling, formed, function, device):
                return formed, shape
        if not taken.bool_mask and _additive(formed, shape, calling, function, device):
            return formed, shape
    as_padding = replace(taken, bool_mask="", float_mask="", padding=name)
    subject = _subject(calling, as_padding, function, device)
    if next(iter(masks.padding(subject, NOTHING_YET))).answer in (masks.MAY_ATTEND, masks.MASKED_OUT):
        return as_padding, MaskShape.FULL
    return taken, MaskShape.FULL


def _shaped(calling: Calling, taken: Taken, shape: MaskShape, function: Callable[..., Any], device: str) -> Subject:
    subject = _subject(calling, taken, function, device)
    return replace(subject, form=replace(subject.form, mask_shape=shape))


def _boolean(taken: Taken, shape: MaskShape, calling: Calling, function: Callable[..., Any], device: str) -> Finding:
    return next(iter(masks.boolean(_shaped(calling, taken, shape, function, device), NOTHING_YET)))


def _additive(taken: Taken, shape: MaskShape, calling: Calling, function: Callable[..., Any], device: str) -> bool:
    found = next(iter(masks.additive(_shaped(calling, taken, shape, function, device), NOTHING_YET)))
    return found.determined and found.answer != ABSENT


def _broadcasts(calling: Calling, taken: Taken, function: Callable[..., Any], device: str) -> bool:
    """Whether masks of four axes and of two broadcast as they should, and no other is misread; refusing is fine."""
    found = masks.mask_shapes(_subject(calling, taken, function, device), False)
    return all(not wrong or (shape in RANKS and wrong.startswith("refused")) for shape, wrong in found.items())


def _tried(
    calling: Calling, taken: Taken, shape: MaskShape, function: Callable[..., Any], device: str, name: str
) -> tuple[Taken, MaskShape]:
    """What a parameter does whose name says nothing: it is given a mask, then True, then a scale."""
    if not (taken.bool_mask or taken.float_mask):
        masked, wanted = _masked(calling, replace(taken, bool_mask=name, float_mask=name), function, device, name)
        subject = _shaped(calling, masked, wanted, function, device)
        if masked.padding == name or next(iter(masks.boolean(subject, NOTHING_YET))).answer != ABSENT:
            return masked, wanted
    for option, probe in (("is_causal", masks.causal), ("scale", numbers.scale)):
        if option not in taken.names:
            named = replace(taken, names={**taken.names, option: name})
            found = next(iter(probe(_subject(calling, named, function, device), NOTHING_YET)))
            if found.determined and found.answer not in (ABSENT, "always"):
                return named, shape
    return taken, shape


def _padded(calling: Calling, taken: Taken, function: Callable[..., Any], device: str) -> Taken:
    """With the polarity of a padding mask."""
    if not taken.padding:
        return taken
    found = next(iter(masks.padding(_subject(calling, taken, function, device), NOTHING_YET)))
    flipped = found.answer == masks.MASKED_OUT
    return replace(taken, padding_flipped=flipped, seen=taken.seen or found.evidence)
