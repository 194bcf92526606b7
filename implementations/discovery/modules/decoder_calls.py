"""Decoder calls: how the attention of a seq2seq decoder is called, and what its text states of its inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import documented_polarity, said_of
from attention_conformance.implementations.discovery.documented_inputs import samples_first_in
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import is_variadic, required
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.conventions import Polarity

Given: TypeAlias = Mapping[str, Any]
SAMPLES, TOKENS = 3, 7
"""Neither is the other, nor a width: an axis is known by its extent."""
WIDTHS = (12, 8, 10, 14)
"""Those that its constructor takes, all different or all the first."""
OF_SOURCE = {"encoder", "enc", "encoded", "memory", "annotations", "source", "src", "keys", "values"}
OF_DECODER = {"hidden", "decoder", "dec", "query", "state", "s", "h", "rnn"}
OF_COUNTS = {"lens", "lengths"}
"""Words in the names of inputs."""
LAYOUTS = ("SBE", "BSE")
"""Axes of the encoder outputs."""
FORMS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "BD": lambda hidden: hidden,
    "1BD": lambda hidden: hidden[None],
    "B1D": lambda hidden: hidden[:, None],
    "hidden and cell": lambda hidden: (hidden[None], hidden[None].cos()),
    "2BD": lambda hidden: torch.stack([hidden.cos(), hidden]),
}
"""Of a decoder's hidden state, by its axes: of two layers or of an LSTM, too."""
MASK_FORMS = ("BS", "B1S", "SB")
"""Axes of a mask, the usual ones first."""
ADDED = re.compile(r"\badd(?:ed|itive)\b|-inf", re.IGNORECASE)
"""Words for a mask of numbers that are added to scores."""


@dataclass(frozen=True)
class Hiding:
    """An input that hides source tokens.

    Attributes:
        name: of the parameter.
        shows: whether True shows a token; None where it has the number of tokens of each sample.
        form: the axes of a mask.
        dtype: of a mask.
        needed: whether it has to be given.
    """

    name: str
    shows: bool | None
    form: str = "BS"
    dtype: torch.dtype = torch.bool
    needed: bool = False

    def of(self, visible: torch.Tensor) -> torch.Tensor:
        """What is given where these tokens are visible, (B, S)."""
        if self.shows is None:
            return visible.sum(1)
        mask = visible if self.shows else ~visible
        mask = {"BS": mask, "B1S": mask[:, None], "SB": mask.T}[self.form]
        return mask.to(self.dtype)


@dataclass(frozen=True)
class DecoderCall:
    """A call of one decoder step.

    Attributes:
        hidden: the parameter of the decoder's hidden state.
        sources: those of the encoder outputs.
        form: that of the hidden state, see `FORMS`.
        layout: those of the encoder outputs.
        widths: of both.
        needed: what hides tokens, and has to be given.
    """

    hidden: str
    sources: tuple[str, ...]
    form: str = "BD"
    layout: str = "SBE"
    widths: tuple[int, int] = (WIDTHS[0], WIDTHS[0])
    needed: tuple[Hiding, ...] = ()

    def __call__(self, module: nn.Module, hidden: torch.Tensor, source: torch.Tensor, **given: Any) -> Answer:
        """Of (B, D) and (B, S, E), each as the module takes it."""
        state = FORMS[self.form](hidden)
        outputs = source.transpose(0, 1).contiguous() if self.layout == "SBE" else source
        everything = torch.ones(source.shape[:2], dtype=torch.bool, device=source.device)
        usual = {each.name: each.of(everything) for each in self.needed}
        inputs = {self.hidden: state, **dict.fromkeys(self.sources, outputs)}
        return answer_of(module(**inputs, **{**usual, **given}), source)


@dataclass(frozen=True)
class Answer:
    """What one decoder step returned: weights, (B, S), and context, (B, C); `shapes` are those in which it did."""

    weights: torch.Tensor | None
    context: torch.Tensor | None
    shapes: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def numbers(self) -> torch.Tensor:
        """All of it, (B, S + C), in float64, whatever the module computes in."""
        return torch.cat([each.double() for each in (self.weights, self.context) if each is not None], 1)


def answer_of(answered: Any, source: torch.Tensor) -> Answer:
    """The parts of an answer by the extents of their axes.

    Raises:
        ValueError: it has no such part, or another one.
    """
    parts = [each for each in parts_of(answered) if isinstance(each, torch.Tensor) and each.is_floating_point()]
    samples, tokens, _ = source.shape
    rows = [_rows(part, samples) for part in parts]
    weights = next((row for row in rows if row.shape[1] == tokens), None)
    context = next((row for row in rows if row.shape[1] != tokens), None)
    if weights is None and context is None:
        raise ValueError("neither weights of source tokens nor a context")
    return Answer(weights, context, tuple(tuple(part.shape) for part in parts))


def _rows(part: torch.Tensor, samples: int) -> torch.Tensor:
    """It with a row for each sample.

    Raises:
        ValueError: it has other axes, as what was broadcast has.
    """
    axes = [extent for extent in part.shape if extent != 1]
    if part.ndim > 3 or (samples == 1 and len(axes) != 1) or (samples > 1 and (len(axes) != 2 or samples not in axes)):
        raise ValueError("other axes than those of samples and of one more thing")
    if samples == 1:
        return part.reshape(1, -1)
    return part.reshape(axes) if axes[0] == samples else part.reshape(axes).T


def hidings(kind: type[nn.Module]) -> list[Hiding]:
    """What hides source tokens in its forward, as far as it is known what hides."""
    found = []
    for parameter in _parameters(kind):
        words = words_of(parameter.name)
        if words & OF_COUNTS:
            found.append(Hiding(parameter.name, None, needed=required(parameter)))
        elif words & {"mask", "masks"} and (polarity := _polarity(kind, parameter.name)) is not None:
            shows = polarity is Polarity.MAY_ATTEND
            found.append(Hiding(parameter.name, shows, needed=required(parameter)))
    return found


def _polarity(kind: type[nn.Module], name: str) -> Polarity | None:
    """What True in a mask means by its text, or where its code fills scores; None where it may be added."""
    own, code = re.escape(name), code_of(kind)
    if re.search(rf"\+=?\s*{own}\b", code) or any(map(ADDED.search, said_of(kind, name))):
        return None
    if (stated := documented_polarity(kind, name)) is not None:
        return stated
    filled = re.search(rf"masked_fill_?\(\s*(~|1\s*-\s*)?{own}\b([^,\n]*),", code)
    if filled is None:
        return None
    off = filled[1] is not None or re.search(r"==\s*(?:0|False)|eq\(\s*(?:0|False)|logical_not", filled[2]) is not None
    return Polarity.MAY_ATTEND if off else Polarity.MASKED_OUT


def _parameters(kind: type[nn.Module]) -> list[inspect.Parameter]:
    signature = safe_call(lambda: inspect.signature(kind.forward)).value
    return [p for p in [*signature.parameters.values()][1:] if not is_variadic(p)] if signature else []


def usual_call(kind: type[nn.Module], known: list[Hiding]) -> DecoderCall | None:
    """With the names of its inputs; None where it has none of a decoder, or needs something else."""
    needed = [p.name for p in _parameters(kind) if required(p)]
    hiding = tuple(each for each in known if each.needed)
    inputs = [name for name in needed if name not in {each.name for each in hiding}]
    sources = tuple(name for name in inputs if words_of(name) & OF_SOURCE)
    states = [name for name in inputs if name not in sources and words_of(name) & OF_DECODER]
    if not sources or len(states) != 1 or len(inputs) != len(sources) + 1 or "states" in words_of(states[0]):
        return None
    return DecoderCall(states[0], sources, needed=hiding)


def calls(kind: type[nn.Module], usual: DecoderCall, sizes: list[int]) -> Iterator[DecoderCall]:
    """Its calls in each layout that its text leaves open, for all widths that may be meant.

    A mask that it needs may be the other way round than is stated: then all tokens are hidden where none should be.
    """
    stated = {True: "BSE", False: "SBE", None: ""}[samples_first_in(kind, usual.sources[:1])]
    widths = [*dict.fromkeys(each for n in sizes or WIDTHS[:1] for each in (n, 2 * n))]
    inverted = tuple(each if each.shows is None else replace(each, shows=not each.shows) for each in usual.needed)
    for needed in dict.fromkeys((usual.needed, inverted)):
        for layout, form, pair in product([stated] if stated else LAYOUTS, FORMS, product(widths, widths)):
            yield replace(usual, layout=layout, form=form, widths=pair, needed=needed)
