"""Decoder attention: that of a seq2seq decoder, whose scores no equation gives, judged by relations of its weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import ROUNDINGS, AsBuilt, Run
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN
from attention_conformance.implementations.discovery.modules.constructor_names import texts_compared
from attention_conformance.implementations.discovery.modules.decoder_calls import (
    MASK_FORMS,
    SAMPLES,
    TOKENS,
    WIDTHS,
    DecoderCall,
    Hiding,
    calls,
    hidings,
    usual_call,
)
from attention_conformance.implementations.discovery.modules.decoder_relations import (
    Look,
    Masked,
    Unmasked,
    moved,
    numbers_of,
    of_something_else,
)
from attention_conformance.implementations.discovery.modules.harder_inputs import mixes_tokens
from attention_conformance.implementations.discovery.modules.promises import text_of
from attention_conformance.implementations.discovery.modules.relations_alone import NUMBERS, ORDERED
from attention_conformance.implementations.discovery.modules.whole_samples import AnyAxes
from attention_conformance.implementations.discovery.signatures import is_variadic, of_constructor, required
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

HEADS, HEAD_WIDTH = 2, 16
"""Of a problem whose inputs are wide enough for both of the decoder's."""
OF_METHOD = {"method", "score", "mode", "kind", "type", "attn", "attention"}
OF_ONES, OF_HEADS = {"layers", "directions"}, {"head", "heads", "nhead"}
OF_OTHERS = {"dropout", "bias", "len", "length", "max", "vocab"}
"""Words in the names of what its constructor takes: a text, what is 1, and what is no width."""
OF_NO_ORDER = re.compile(r"seq\w*|src\w*|\w*_len\w*|relu|\bt?anh|first|row", re.IGNORECASE)
"""What looks like words for an order of tokens, and states none."""

HIDDEN, UNSEEN = "where {} hides source tokens", "not judged: what it hides is not seen apart from the rest"
OF_TRAINING = re.compile(r"drop|batch_?norm|\btraining\b|noise|rand", re.IGNORECASE)
"""What its text, or the name of a part, has where it may answer otherwise in training mode."""


def decoder_attention(name: str, kind: object, refused: TargetError, device: str) -> Implementation | None:
    """The class, with no claims but relations of its answers; None where it is none of these, or cannot be called."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    claims = Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}), fit=_sized)
    case = fit(PLAIN, claims)
    if not isinstance(case, Case):
        return None
    with torch.random.fork_rng(devices=[]):
        found = dict(_runs(kind, build(case, "float64").forward_only(), device))
    if not found:
        return None
    (first, run), *others = found.items()
    run = replace(run, otherwise={**run.otherwise, **dict(others)})
    why = f"judged by relations between its own answers alone, as {refused}"
    about = f"the attention of a decoder{f', with {first}' if first else ''}: {refused}"
    unseen = {each.name: UNSEEN for each in hidings(kind) if HIDDEN.format(repr(each.name)) not in run.otherwise}
    return Implementation(name, claims, run, about, modes={Feature.AS_BUILT: run}, findings={NUMBERS: why, **unseen})


def _sized(case: Case) -> Case:
    widths = {"num_heads": HEADS, "d_k": HEAD_WIDTH, "d_v": HEAD_WIDTH}
    return case.sized(batch=SAMPLES, query_length=TOKENS, key_length=TOKENS, **widths)


def _runs(kind: type[nn.Module], problem: Problem, device: str) -> Iterator[tuple[str, AsBuilt]]:
    """What is looked at with each text for its method, in the first way of building it in which that answers."""
    known = hidings(kind)
    usual, done = usual_call(kind, known), set[str]()
    for make, sizes, how in _makes(kind) if usual is not None else ():
        if how in done or usual is None:
            continue
        run = AsBuilt(partial(_built, make), _Numbers(usual), prefixes=False, trained=False)
        module = safe_call(partial(run.module, problem, device)).value
        looks = [Look(run, call) for call in calls(kind, usual, sizes)] if module is not None else []
        if module is not None and (look := _chosen(looks, module, problem, device)) is not None:
            done.add(how)
            judged = _judged(look, kind, module, known, problem, device)
            yield from () if judged is None else [(how, judged)]


def _makes(kind: type[nn.Module]) -> Iterator[tuple[partial[nn.Module], list[int], str]]:
    """Ways to build it, each with the widths that it may have, and a text for its method."""
    signature = safe_call(lambda: of_constructor(kind)).value
    parameters = [p for p in signature.parameters.values() if not is_variadic(p)] if signature else []
    if any(words_of(p.name) & OF_HEADS for p in parameters):  # it is looked at as a sequence's elsewhere
        return
    texts = {p.name: _texts(kind, p) for p in parameters if _is_text(kind, p)}
    sizes = [p.name for p in parameters if p.name not in texts and _is_size(p)]
    usual = {p.name: 0.0 if "dropout" in words_of(p.name) else 1 for p in parameters if required(p)}
    for chosen in product(*texts.values()):
        named = dict(zip(texts, chosen, strict=True))
        how = ", ".join(f"{name}={text!r}" for name, text in named.items())
        for numbers in (WIDTHS, WIDTHS[:1] * len(WIDTHS)):
            counted = dict(zip(sizes, numbers, strict=False))
            if len(sizes) <= len(WIDTHS):
                yield partial(kind, **{**usual, **counted, **named}), [*dict.fromkeys(counted.values())], how


def _is_text(kind: type[nn.Module], parameter: inspect.Parameter) -> bool:
    own = isinstance(parameter.default, str) or (required(parameter) and bool(texts_compared(kind, parameter.name)))
    return own and bool(words_of(parameter.name) & OF_METHOD)


def _texts(kind: type[nn.Module], parameter: inspect.Parameter) -> list[str]:
    default = [parameter.default] if isinstance(parameter.default, str) else []
    return [*dict.fromkeys([*default, *texts_compared(kind, parameter.name)])]


def _is_size(parameter: inspect.Parameter) -> bool:
    if words_of(parameter.name) & (OF_OTHERS | OF_ONES):
        return False
    return required(parameter) or (type(parameter.default) is int and parameter.default >= min(WIDTHS))


def _built(make: Callable[[], nn.Module], _: Problem) -> nn.Module:
    """A module of one size, whatever a problem's is."""
    return make()


@dataclass(frozen=True)
class _Numbers:
    """All numbers of a decoder step, whose inputs are those of `Look`."""

    call: DecoderCall

    def __call__(self, module: nn.Module, given: Tensors, _: Problem) -> torch.Tensor:
        hidden, source = self.call.widths
        x = given["query"]
        return self.call(module, x[:, -1].flip(-1)[:, :hidden], x[..., :source]).numbers


def _chosen(looks: list[Look], module: nn.Module, problem: Problem, device: str) -> Look | None:
    """The first call that keeps samples apart; where its text states the layout, one that does not, too."""
    layouts = {look.call.layout for look in looks}
    wrong = None
    for look in looks:
        seen = safe_call(partial(_seen, look, module, problem, device)).value
        if seen is not None and all(seen):
            return look
        if seen is not None and (seen[1] or not seen[2]):
            wrong = wrong or look
    return wrong if len(layouts) == 1 else None


def _seen(look: Look, module: nn.Module, problem: Problem, device: str) -> tuple[bool, bool, bool]:
    """Whether a sample has its own encoder outputs alone, its own state alone, and weights of source tokens.

    These are of something else where they add up to 1 over that.
    """
    hidden, source = look.inputs(problem)
    usual = look.answer(module, hidden, source, device)
    rows = numbers_of(usual)
    if not np.isfinite(rows).all() or not np.array_equal(rows, numbers_of(look.answer(module, hidden, source, device))):
        raise ValueError("it does not answer the same numbers twice")
    least = ROUNDINGS * np.abs(rows).max()
    others = np.concatenate([moved(source)[:1], source[1:]])
    states = np.concatenate([-1.5 * hidden[:1, ::-1], hidden[1:]])
    changed = [
        np.abs(numbers_of(look.answer(module, *given, device)) - rows).max(1) > least
        for given in ((hidden, others), (states, source))
    ]
    apart, of_state = (bool(each[0]) and not each[1:].any() for each in changed)
    alone = [numbers_of(look.answer(module, hidden[n : n + 1], source[n : n + 1], device)) for n in range(len(rows))]
    return (
        apart and bool(np.abs(np.concatenate(alone) - rows).max() <= least),
        of_state,
        not of_something_else(usual.weights),
    )


def _judged(
    look: Look, kind: type[nn.Module], module: nn.Module, known: list[Hiding], problem: Problem, device: str
) -> AsBuilt | None:
    """The run with all relations that can be looked at; None where it raises."""
    named = " ".join([text_of(kind), *(type(part).__name__ for part in module.modules())])
    call = AnyAxes(_Numbers(look.call))  # type: ignore[arg-type]
    ordered = ORDERED.search(OF_NO_ORDER.sub("", text_of(kind))) or mixes_tokens(module)
    relations: dict[str, Run] = {"of its source tokens": Unmasked(look, not ordered)}
    for hiding in known:
        forms = MASK_FORMS if hiding.shows is not None else ("BS",)
        tried = (replace(hiding, form=f, dtype=d) for f in forms for d in (torch.bool, torch.float64, torch.long))
        masked = (Masked(look, each, mixes_tokens(module)) for each in tried)
        first = next((m for m in masked if safe_call(partial(m.acts, module, problem, device)).value), None)
        if first is not None:
            relations[HIDDEN.format(repr(hiding.name))] = first
    results = {how: safe_call(partial(each, problem, device)).value for how, each in relations.items()}
    usable = {how: relations[how] for how, result in results.items() if result is not None and result.others}
    run = replace(look.run, call=call, otherwise=usable, trained=not OF_TRAINING.search(named))
    return None if safe_call(partial(run, problem.fresh(), device)).error else run
