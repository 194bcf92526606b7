"""Relations alone: what can be judged of a module class whose form is unknown, so that no answer can be expected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, AsBuilt, moved_at
from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.attempts import attempts
from attention_conformance.implementations.discovery.modules.constructor_names import SQUARES, Size, size_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall, forward_calls, settled
from attention_conformance.implementations.discovery.modules.module_runs import module_run
from attention_conformance.implementations.discovery.modules.whole_modules import of_unknown_form, plain_problem
from attention_conformance.implementations.discovery.signatures import of_constructor, required
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

HEADS, WIDTH, TOKENS = 4, 32, 6
"""Sizes that most classes take."""
EVEN = (12, 8, 4, 6, 10)
"""Widths for what has names of its own."""
MOST_MAKES, MOST_CALLS = 6, 12
"""Ways to build it, and to call it, that are tried."""
MOST_NUMBERS = 2**22
"""In the parameters of a module that is looked at."""
NUMBERS = "its numbers"
"""What is not judged."""


def relations_alone(name: str, kind: object, refused: TargetError, device: str) -> Implementation | None:
    """The class, with no claims but relations between its own answers; None where it cannot be called, or has none."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    with torch.random.fork_rng(devices=[]):
        run, tokens = next(_runs(kind, device), (None, TOKENS))
    if run is None:
        return None
    return Implementation(
        name,
        Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}), fit=partial(_sized, tokens)),
        run,
        f"a module class of unknown form: {refused}",
        modes={Feature.AS_BUILT: run},
        findings={NUMBERS: f"judged by relations between its own answers alone, as {refused}"},
    )


def _sized(tokens: int, case: Case) -> Case | Unsupported:
    sizes = {"num_heads": HEADS, "d_k": WIDTH // HEADS, "d_v": WIDTH // HEADS}
    return case.sized(batch=max(2, case.sizes.batch), query_length=tokens, key_length=tokens, **sizes)


def _runs(kind: type[nn.Module], device: str) -> Iterator[tuple[AsBuilt, int]]:
    """The ways to build and call it in which it answers, keeps samples apart, and has something to compare.

    Each with the number of tokens that it is called with.
    """
    calls = safe_call(lambda: [*islice(forward_calls(kind, Polarity.MASKED_OUT), MOST_CALLS)]).value or []
    for make in islice(_makes(kind), MOST_MAKES):
        for call in calls:
            tokens = make.tokens if make.window in SQUARES else TOKENS
            if (run := _run(make, call, tokens, device)) is not None:
                yield run, tokens


def _makes(kind: type[nn.Module]) -> Iterator[Constructor]:
    """Those that can be built at all."""
    for make in chain(_known(kind), _numbered(kind)):
        module = safe_call(partial(make, WIDTH, HEADS)).value
        if module is not None and sum(each.numel() for each in module.parameters()) > MOST_NUMBERS:
            return  # such as a table for each offset in a window of thousands of tokens: each call would take seconds
        if module is not None:
            yield make


def _known(kind: type[nn.Module]) -> Iterator[Constructor]:
    with suppress(TargetError):
        yield from attempts(kind)


def _numbered(kind: type[nn.Module]) -> Iterator[Constructor]:
    """With a number for each parameter whose name states none, all of them different."""
    signature = safe_call(lambda: of_constructor(kind)).value
    needed = [p.name for p in signature.parameters.values() if required(p)] if signature else []
    sizes = {name: size for name in needed if (size := size_of(name)) is not None}
    others = [name for name in needed if name not in sizes]
    if {Size.WIDTH, Size.HEADS} <= {*sizes.values()} and len(others) <= len(EVEN):
        yield Constructor(kind, sizes=sizes, options=dict(zip(others, EVEN, strict=False)))


def _run(make: Constructor, call: ModuleCall, tokens: int, device: str) -> AsBuilt | None:
    module = safe_call(partial(make, WIDTH, HEADS)).value
    if module is None:
        return None
    found = safe_call(partial(settled, call, in_mode(module, False), WIDTH, HEADS, tokens)).value
    if found is None:
        return None
    for each in (found, replace(found, length_first=True)):
        claims = Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}), fit=partial(_sized, tokens))
        check = ClaimCheck(each, partial(module_run, make), claims, device)
        run, problem = of_unknown_form(make, module, each, check), plain_problem(check)
        if run is not None and problem is not None and _keeps_apart(run, problem, device):
            return run if run.otherwise or run.pieces or run.trained or run.causal else None
    return None


def _keeps_apart(run: AsBuilt, problem: Problem, device: str) -> bool:
    """Whether a sample's answer does not depend on another one, but its tokens depend on each other.

    The axis of tokens might be taken for that of samples, where no form is known.
    """
    moved = problem.with_arrays({name: _first_moved(getattr(problem, name)) for name in INPUTS})
    first, second = (safe_call(partial(_output, run, each, device)).value for each in (problem, moved))
    if first is None or second is None:
        return False
    changed = np.abs(first - second).max(-1) > ROUNDINGS * np.abs(first).max()
    return not changed[1:].any() and int(changed[0].sum()) > 1


def _output(run: AsBuilt, problem: Problem, device: str) -> Array:
    return run(problem.fresh(), device).output


def _first_moved(array: Array) -> Array:
    """With another first token in the first sample."""
    moved = array.copy()
    moved[:1] = moved_at(array[:1], 0)
    return moved
