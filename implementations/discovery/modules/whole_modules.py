"""Whole modules: with the parts in place that are left out where the answer is known, as far as they can be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.as_built import (
    AsBuilt,
    Call,
    HeadAxes,
    Run,
    SeenTogether,
    keeps_wrongly,
)
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.global_state import torch_seeded
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.bare import POSITIONS
from attention_conformance.implementations.discovery.modules.bias_tables import tables_of
from attention_conformance.implementations.discovery.modules.built_otherwise import (
    OF_CAUSALITY,
    causal_by_default,
    causal_too,
    limited,
    turned_on,
    words_of_option,
)
from attention_conformance.implementations.discovery.modules.cache_forms import (
    in_long,
    last_pieces_of,
    may_be_driven,
    pieces_of,
)
from attention_conformance.implementations.discovery.modules.constructor_names import SQUARES
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.distances import (
    at_larger_positions,
    moved_otherwise,
    moved_tokens,
)
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import (
    TOKENS,
    Change,
    Changed,
    OthersHidden,
    WithCounts,
    hiding,
    lengthened,
    mixes_tokens,
)
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.neutrals import OF_PARTS
from attention_conformance.implementations.discovery.modules.optional_inputs import untouched
from attention_conformance.implementations.discovery.modules.packed_samples import behind_others
from attention_conformance.implementations.discovery.modules.parameter_slopes import ParameterSlopes
from attention_conformance.implementations.discovery.modules.parameters import find_places, patterns
from attention_conformance.implementations.discovery.modules.part_numbers import numbers
from attention_conformance.implementations.discovery.modules.same_function import after_longer, after_usual, other_ways
from attention_conformance.implementations.discovery.modules.seen_latents import states_keys
from attention_conformance.implementations.discovery.modules.window_masks import (
    window_masks,
)
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.spec.problem import Array, Problem

OVER_TOKENS = ("groupnorm", "instancenorm", "batchnorm")
"""In the names of classes that may divide by the size of several tokens together."""
WINDOWS = 4
"""Of an image, two in a row, where a module divides images itself."""
OF_COUNTS = {"len", "lens", "length", "lengths"}
"""Words in the names of what counts tokens of each sample."""
FEWER = 12
"""Tokens, where the usual number of them is that of components."""
WIDE = "float64"
"""The dtype in which a whole module is called: rounding is far below what a mistake changes."""


def as_built(make: Constructor, call: ModuleCall, check: ClaimCheck, felt: Mapping[str, object]) -> Modes:
    """Its run with all parts in place; none where nothing was left out, or it answers the same call differently.

    `felt`: see `felt_numbers`.
    """
    counts = [name for name in never_given(make.kind, call) if words_of(name) & OF_COUNTS]
    of_parts = OF_PARTS & {*call.tables.values()}  # nothing of the width of 1 that small heads have is rotated in pairs
    options = {} if of_parts else dict(turned_on(make))
    left_out = bool(make.left_out or make.held or states_keys(make.kind, call))
    direct = replace(call, tap="").alone_with_itself()
    caches = may_be_driven(make.kind, direct)
    whole = replace(make, left_out=(), held={}, norms=None)
    limits = dict(limited(whole))
    module = safe_call(lambda: built(whole)).value
    if module is None or WIDE not in check.claims.dtypes:
        return {}
    build, bare = partial(built_for, whole, True), replace(call, tap="")
    given = dict(untouched(build, bare, make.kind, plain_problem(check), check.device))
    optional = felt or causal_by_default(make)
    apart = bool(left_out or counts or options or limits or given or optional or keeps_wrongly(module))
    if not (apart or caches):
        return {}
    parts = [*_parts(module, make)]
    premises = check.claims.premises
    sized = bool(premises.length or premises.block or make.window)
    run = usual_run(whole, module, direct, sized)
    run = replace(run, heads=None if premises.alibi else _head_axes(whole))
    pieces = _pieces(run, make, direct, check) if caches else {}
    pieces |= behind_others(run, direct, plain_problem(check), check.device)
    if not (apart or pieces):
        return {}
    unordered = replace(premises, scale=None, qk_norm=False, norm_epsilon=None) == NO_PREMISES
    unordered = unordered and not (sized or call.latents) and all(_is_of_tokens(part, make) for part in parts)
    every = replace(run, unordered=unordered, pieces=pieces)
    if not (apart or premises.hides_later):  # nothing but its cache is unknown
        usable = _usable(replace(run, heads=None, pieces=pieces), check)
        return {Feature.AS_BUILT: usable} if usable is not None and usable.pieces else {}
    if counts and not left_out:  # a shorter sequence has other counts
        counted = WithCounts(direct, tuple(counts))
        every = replace(every, call=Chosen(counted, ()), prefixes=False, unordered=False, pieces={})
    usable = _usable(every, check)
    if usable is None:
        return {}
    makes = {how: replace(whole, options=each.options, changed=each.changed) for how, each in options.items()}
    otherwise = given | _otherwise(whole, makes, module, direct, sized, check, make)
    otherwise |= _tables(whole, module, direct, check)
    problem = plain_problem(check)
    if not sized:
        otherwise |= moved_tokens((whole, replace(make, held={})), usable.call, problem, check.device)
    equal = numbers(make, makes, call, check, problem)
    harder = _harder(usable, module, check, sized)
    harder |= _answered({**equal, **after_longer(usable, limits), **after_usual(usable, direct, felt)}, check)
    return {Feature.AS_BUILT: replace(usable, otherwise=otherwise | harder)}


def _pieces(run: AsBuilt, make: Constructor, call: ModuleCall, check: ClaimCheck) -> dict[str, Call]:
    """The calls in pieces, all rows of which are compared where no token sees a later one."""
    problem = plain_problem(check)
    if check.claims.premises.hides_later:
        return dict(pieces_of(run, make.kind, call, problem, check.device))
    return dict(last_pieces_of(run, make.kind, call, problem, check.device, Feature.CAUSAL in check.claims))


def _harder(run: AsBuilt, module: nn.Module, check: ClaimCheck, sized: bool) -> dict[str, Run]:
    """The run in a long sequence, and with other tokens where they are hidden, as far as it answers so."""
    found = _answered({"the slopes along its parameters": ParameterSlopes(run)}, check)
    runs = () if sized else in_long(run, plain_problem(check), check.device)
    attempts = (Changed(each, lengthened) for each in runs)
    long = next((each for each in attempts if _answers(each, check, lengthened)), None)
    found |= {} if long is None else {f"in a sequence of {TOKENS} tokens": long}
    if (hidden := hiding(check.claims)) is not None and run.prefixes and not mixes_tokens(module):
        ends, middle = OthersHidden(run, hidden), OthersHidden(run, replace(hidden, middle=True))
        places = {"where a mask hides the last tokens": ends, "where a mask hides a token amid others": middle}
        found |= _answered(places, check)
    return found


def _answered(runs: Mapping[str, Run], check: ClaimCheck) -> dict[str, Run]:
    """Those of the runs that answer the plain problem."""
    problem = plain_problem(check)
    if problem is None:
        return {}
    return {how: run for how, run in runs.items() if not safe_call(partial(run, problem.fresh(), check.device)).error}


def _otherwise(
    usual: Constructor,
    makes: Mapping[str, Constructor],
    module: nn.Module,
    call: ModuleCall,
    sized: bool,
    check: ClaimCheck,
    neutral: Constructor,
) -> dict[str, Run]:
    """The runs of a class as it is built with each of these options, and with one that hides later tokens as well.

    `neutral` is the class as its answer is known: what hides later tokens there hides them with all parts in place.
    """
    pairs = dict(causal_too(usual, makes))
    every = {**makes, **{how: both for how, (both, _) in pairs.items()}}
    found: dict[str, AsBuilt | None] = {}
    for how, each in every.items():
        found[how] = run = _optional(each, module, call, sized, check)
        if run is not None and not run.causal and words_of_option(usual, each) & OF_CAUSALITY:
            bare = replace(neutral, options=each.options, changed=each.changed)
            if not _sees_later(replace(run, build=partial(built_for, bare, True)), check):
                found[how] = _usable(replace(run, causal=True, unordered=False), check)
    runs = {how: each for how, each in found.items() if each is not None}
    windows: dict[str, Run] = {
        how: each for name, run in runs.items() for how, each in _windows(usual, call, name, run, check)
    }
    together: dict[str, Run] = {
        f"{how}, and what it sees": SeenTogether(runs[how], (runs[causal], runs[other]))
        for how, (_, (causal, other)) in pairs.items()
        if {how, causal, other} <= runs.keys()
    }
    problem, whole = plain_problem(check), usual_run(usual, module, call, sized)
    ways = {} if problem is None else dict(other_ways(usual, whole, runs, makes, problem))
    calls = {how: (every[how], each.call) for how, each in ({} if sized else runs).items()}
    distances = moved_otherwise(calls, problem, check.device)
    answered = _answered({**ways, **_masked(runs, check, problem)}, check)
    return {**runs, **together, **windows, **answered, **distances}


def _masked(runs: Mapping[str, AsBuilt], check: ClaimCheck, problem: Problem | None) -> dict[str, Run]:
    """What they answer where a mask hides the last tokens, if nothing else brings tokens together."""
    hidden, found = hiding(check.claims), dict[str, Run]()
    if hidden is None or problem is None:
        return found
    for how, run in runs.items():
        module = safe_call(partial(run.build, problem)).value
        if run.prefixes and module is not None and not mixes_tokens(module):
            found[f"{how}, where a mask hides the last tokens"] = OthersHidden(run, hidden)
    return found


def _windows(
    make: Constructor, call: ModuleCall, how: str, run: AsBuilt, check: ClaimCheck
) -> Iterator[tuple[str, Run]]:
    """The run with an image of several windows, where it takes images and divides them itself."""
    if make.window in SQUARES and call.spatial:
        change = partial(lengthened, tokens=WINDOWS * make.tokens)
        several = Changed(run, change)
        if _answers(several, check, change):
            yield f"{how}, with images of {WINDOWS} windows", several


def _tables(whole: Constructor, module: nn.Module, direct: ModuleCall, check: ClaimCheck) -> dict[str, Run]:
    """Its tables of biases and its masks of windows, as far as they can be looked at."""
    found, problem = safe_call(partial(tables_of, whole, module, Chosen(direct, ()))).value or {}, plain_problem(check)
    if problem is None:
        return {}
    windows = {how: run.in_its_order(problem, check.device) for how, run in window_masks(whole, direct).items()}
    return _answered({**found, **windows}, check)


def usual_run(whole: Constructor, module: nn.Module, direct: ModuleCall, sized: bool) -> AsBuilt:
    """A run without what is known of the class; `module` is one of its instances."""
    summed = any(word in type(part).__name__.lower() for part in module.modules() for word in OVER_TOKENS)
    drops = any("drop" in type(part).__name__.lower() and getattr(part, "p", 1.0) for part in module.modules())
    trained, prefixes = not (summed or drops), not (sized or summed)
    return AsBuilt(partial(built_for, whole, True), Chosen(direct, ()), prefixes=prefixes, trained=trained)


def _usable(every: AsBuilt, check: ClaimCheck) -> AsBuilt | None:
    """The run with as many of its outputs as can be made."""
    evaluated = replace(every, trained=False)
    alike = replace(evaluated, heads=None)
    attempts = (every, evaluated, alike, replace(alike, pieces={}), replace(alike, pieces={}, unordered=False))
    return next((each for each in attempts if _answers(each, check)), None)


def of_unknown_form(make: Constructor, module: nn.Module, call: ModuleCall, check: ClaimCheck) -> AsBuilt | None:
    """The run of a class of which nothing is known but how it is built and called; `module` is one of its instances."""
    run = _by_behaviour(make, module, call, check, sized=bool(make.window))
    run = None if run is None else _usable(run, check)
    if run is None:
        return None
    sized = bool(make.window)
    otherwise = _otherwise(make, dict(turned_on(make)), module, call, sized, check, make)
    otherwise |= {} if sized else moved_tokens((make,), run.call, plain_problem(check), check.device)
    later = at_larger_positions(run, make, module, call)
    longer = _answered({**after_longer(run, dict(limited(make))), **later}, check)
    return replace(run, otherwise=otherwise | _harder(run, module, check, sized) | longer)


def _optional(
    whole: Constructor, usual: nn.Module, direct: ModuleCall, sized: bool, check: ClaimCheck
) -> AsBuilt | None:
    """The run of a class that is built with an option more than usual; heads are moved where that adds parameters."""
    module = safe_call(lambda: built(whole)).value
    run = None if module is None else _by_behaviour(whole, module, direct, check, sized)
    if run is None:
        return None
    axes, before = _head_axes(whole), dict(usual.named_parameters())
    added = axes is not None and any(each for path, each in axes.axes.items() if path not in before)
    return _usable(replace(run, heads=axes if added else None), check)


def _by_behaviour(
    whole: Constructor, module: nn.Module, call: ModuleCall, check: ClaimCheck, sized: bool
) -> AsBuilt | None:
    """A run that knows whether a token sees a later one; None where it cannot be called."""
    run = usual_run(whole, module, call, sized)
    later = _sees_later(run, check)
    if later is None:
        return None
    if later:  # a premise of the class as it is usually built is none of this one
        return replace(run, causal=False, prefixes=run.prefixes and not check.claims.premises.causal)
    pieces = pieces_of(run, whole.kind, call, plain_problem(check), check.device)
    return replace(run, causal=True, pieces=pieces)


def _sees_later(run: AsBuilt, check: ClaimCheck) -> bool | None:
    """Whether a token sees a later one; None where it cannot be called."""
    problem = plain_problem(check)
    if problem is None:
        return None
    later = safe_call(lambda: run.sees_later(problem.fresh(), check.device))
    return None if later.error else bool(later.value)


def plain_problem(check: ClaimCheck) -> Problem | None:
    """What whole modules are looked at with; None where the claims allow no such problem."""
    every = (fit(case, check.claims) for case in (PLAIN, PLAIN.sized(query_length=FEWER, key_length=FEWER)))
    problems = [build(each, WIDE).forward_only().fresh() for each in every if isinstance(each, Case)]
    square = [_is_square(each) for each in problems]
    return problems[square.index(False) if False in square else 0] if problems else None


def _is_square(problem: Problem) -> bool:
    """Whether there are as many tokens as components, so that a layout with these exchanged raises nothing."""
    return bool(problem.query.shape[1] == problem.query.shape[-1])


def _head_axes(make: Constructor) -> HeadAxes | None:
    """Which axes of its parameters count heads, seen where it is built with other numbers of them; None if unknown."""
    if make.kv_heads or make.grouped or make.one_head:
        return None
    outcomes = {heads: safe_call(partial(make, 2 * make.width, heads)).value for heads in (2, 4)}
    one, other = outcomes.values()
    if one is None or other is None:
        return None
    known, shapes = _known(make, one), [{n: p.shape for n, p in module.named_parameters()} for module in (one, other)]
    if shapes[0].keys() != shapes[1].keys():
        return None
    axes: dict[str, tuple[int, ...]] = {}
    for path, shape in shapes[0].items():
        if path in known:
            continue
        owner = one.get_submodule(path.rpartition(".")[0])
        pairs = [*enumerate(zip(shape, shapes[1][path], strict=True))]
        inputs = {1} if isinstance(owner, nn.Linear) and len(shape) == 2 else set()
        if inputs and pairs[1][1] == (make.width, make.width // 2):
            return None  # a layer of each head's part of something, which may be the input as it is
        if any(pair[0] % (2 * make.width) == 0 and axis not in inputs for axis, pair in pairs):
            return None  # heads may lie in it, next to other things
        axes[path] = tuple(axis for axis, pair in pairs if pair == (2, 4))
    if any((2, 4) in zip(b.shape, dict(other.named_buffers())[n].shape, strict=False) for n, b in one.named_buffers()):
        return None
    return HeadAxes(make.find_places, axes)


def _known(make: Constructor, module: nn.Module) -> set[str]:
    """The paths of parameters of a module whose places are known."""
    named = make.places or find_places(module)
    return {path for path, _ in module.named_parameters() if any(pattern in named for pattern, _ in patterns(path))}


def _parts(module: nn.Module, make: Constructor) -> Iterator[nn.Module]:
    """The modules that were left out, or whose parameters were held."""
    for path, _ in module.named_parameters():
        if any(pattern in make.held for pattern, _ in patterns(path)):
            yield module.get_submodule(path.rpartition(".")[0])
    named = dict(module.named_modules())
    yield from (named.get(path) or named[path.rpartition(".")[0]] for path in make.left_out)


def _is_of_tokens(part: nn.Module, make: Constructor) -> bool:
    """Whether it certainly does the same with each token, wherever that is."""
    name = type(part).__name__.lower()
    if isinstance(part, nn.Linear):
        return part.in_features in (make.width, make.width // make.heads)
    return "norm" in name and not any(word in name for word in (*OVER_TOKENS, *POSITIONS))


def _answers(run: Run, check: ClaimCheck, change: Change = Problem.fresh) -> bool:
    """Whether it answers finite numbers of the changed input's samples and tokens, and nothing at random."""
    problem = plain_problem(check)
    if problem is None:
        return False
    results, samples_and_tokens = [], change(problem).query.shape[:2]
    for seed in (1, 2):
        with torch_seeded(seed):
            results.append(safe_call(lambda: run(problem.fresh(), check.device)).value)
    first, second = results
    if not isinstance(first, Result) or not isinstance(second, Result):
        return False
    shaped = first.output.ndim == 3 and first.output.shape[:2] == samples_and_tokens
    repeated = _is_same(first.others["after other calls"].output, first.output)
    return shaped and repeated and all(_is_same(first.others[how].output, x.output) for how, x in second.others.items())


def _is_same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.isfinite(one).all()) and bool((one == other).all())
