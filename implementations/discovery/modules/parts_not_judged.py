"""What whole modules are not judged in: parameters whose equation is unknown, or that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.parameters import patterns, place_of
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations
from attention_conformance.implementations.discovery.modules.transformer_xl import RelativePositions
from attention_conformance.implementations.discovery.modules.whole_modules import plain_problem
from attention_conformance.implementations.discovery.modules.window_masks import UNKNOWN_ORDER, WindowMasks
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

EQUATIONS = (PartEquations, RelativePositions)
"""Runs that judge the numbers of parts."""


def not_judged(modes: Modes, make: Constructor, call: ModuleCall, check: ClaimCheck) -> dict[str, str]:
    """Parameters of its parts whose numbers are not judged, with the reason."""
    return _without_equation(modes, make) | _without_effect(modes, make, call, check)


def _without_equation(modes: Modes, make: Constructor) -> dict[str, str]:
    """Parameters that are held at a value without effect and whose equation is unknown, with the reason."""
    run = modes.get(Feature.AS_BUILT)
    otherwise = run.otherwise if isinstance(run, AsBuilt) else {}
    known = {path for each in otherwise.values() if isinstance(each, EQUATIONS) for path in each.uses}
    unknown = [path for path in make.held if place_of(path) is None and f"the rows of {path}" not in otherwise]
    left = [path for path in unknown if not {path, path.rpartition(".")[0]} & known]
    return dict.fromkeys(left, "its equation is unknown: judged by relations between answers alone")


def _without_effect(modes: Modes, make: Constructor, call: ModuleCall, check: ClaimCheck) -> dict[str, str]:
    """Parameters of its parts that change nothing, with the reason; none where it is given what changes nothing."""
    run, problem = modes.get(Feature.AS_BUILT), plain_problem(check)
    if not isinstance(run, AsBuilt) or call.tables or problem is None:
        return {}
    with torch.random.fork_rng(devices=[]):
        idle = safe_call(lambda: run.without_effect(problem.fresh(), check.device)).value or ()
        of_options = dict(_of_options(run, problem, check.device))
    parts = tuple(make.left_out)
    unknown = [p for p in idle if p.startswith(parts) or any(pattern in make.held for pattern, _ in patterns(p))]
    masks = [each.name for each in run.otherwise.values() if isinstance(each, WindowMasks) and each.windows_first]
    return of_options | dict.fromkeys(masks, UNKNOWN_ORDER) | dict.fromkeys(unknown, "it changes nothing in the answer")


def _of_options(run: AsBuilt, problem: Problem, device: str) -> Iterator[tuple[str, str]]:
    """Parameters that an option adds and that change nothing, where others that it adds do."""
    usual = dict(run.build(problem).named_parameters())
    for how, other in run.otherwise.items():
        if not isinstance(other, AsBuilt):
            continue
        added = [path for path, _ in other.build(problem).named_parameters() if path not in usual]
        idle = safe_call(partial(other.without_effect, problem.fresh(), device, usual)).value or () if added else ()
        if len(idle) < len(added):
            yield from ((path, f"{how}, it changes nothing in the answer") for path in idle)
