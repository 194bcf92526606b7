"""Caches that a function takes: whatever the form, a sequence in pieces has to give what it gives as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_programs import plainly
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import answer, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, AdapterRun, ClaimCheck
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.functions.cache_names import (
    cache_groups,
    in_single_tokens,
    takes_single_tokens,
)
from attention_conformance.implementations.discovery.functions.empty_caches import buffers, empties
from attention_conformance.implementations.discovery.functions.fed_caches import (
    Fed,
    Recorder,
    Taken,
    with_inner,
)
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.prefix_keys import PrefixKeys
from attention_conformance.implementations.discovery.functions.served import Served
from attention_conformance.implementations.discovery.modules.cache_forms import MOST_PARTS, SHORT, placed
from attention_conformance.implementations.discovery.modules.cache_pieces import CUTS, STEPS, Form, first_driven
from attention_conformance.implementations.discovery.modules.own_cache import (
    UNKNOWN_FORM,
    wanted_of,
)
from attention_conformance.implementations.discovery.shipped.shipped import ShippedCall
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

DTYPES = ("float64", "float32")
"""In which pieces and the whole are compared."""
SEQUENCE = PLAIN.sized(query_length=SHORT, key_length=SHORT)


@dataclass(frozen=True)
class ThroughCache:
    """A call of tokens in pieces where they can be cut, and of all of them at once elsewhere.

    Attributes:
        call: of all tokens.
        ways: the function in pieces, by whether a problem states that no token sees a later one.
    """

    call: RenamedCall
    ways: Mapping[bool, Fed]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's output."""
        way = self.ways.get(bool(options.get("is_causal")))
        masked = any(hasattr(each, "shape") for each in options.values())
        unlike = way is not None and way.alike and key.shape[3] != value.shape[3]
        unlike = unlike or (way is not None and int(query.dtype.itemsize) > way.widest)
        if way is None or masked or unlike or query.shape[2] != key.shape[2]:
            return self.call(query, key, value, **options)
        return with_inner(self.call, lambda inner: replace(way, function=inner))(query, key, value, **options)


def with_caches(made: Implementation, device: str) -> Implementation:
    """The candidate that is given its tokens in pieces, too, where its function takes a cache.

    What it takes and is not judged so is in its findings. One that is judged by what published caches hold, or is fed
    one token after another as it is, needs nothing else.
    """
    run = made.run
    call = getattr(getattr(run, "function", None), "function", None)
    if not is_dataclass(run) or not isinstance(call, RenamedCall) or Feature.ALTERNATIVES not in made.claims:
        return made
    if isinstance(call.function, Served | ShippedCall | PrefixKeys) or in_single_tokens(call):
        return made
    check = ClaimCheck(call, partial(_called_so, run), made.claims, device)
    runs, findings, judged = dict[str, AdapterRun](), dict[str, str](), set[str]()
    for past in cache_groups(_inner(call)):
        ways, why = _ways(check, call, past)
        findings |= dict.fromkeys(past, why) if why else {}
        judged |= {name for way in ways.values() for fed in way.ways.values() for name in (*fed.places, *past)}
        runs |= {name: check.adapt(Chosen(way)) for name, way in ways.items()}
    others = {name: why for name, why in made.findings.items() if name not in judged}
    return replace(made, alternatives={**made.alternatives, **runs}, findings={**others, **findings})


def _called_so(run: Any, function: Callable[..., Any]) -> AdapterRun:
    """The run of another function that returns its output alone."""
    made: AdapterRun = replace(run, function=function, extras=())
    return made


def _inner(call: RenamedCall) -> Callable[..., Any]:
    found: list[Callable[..., Any]] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        found.append(function)
        return function

    with_inner(call, noted)
    return found[0]


def _ways(check: ClaimCheck, call: RenamedCall, past: tuple[str, ...]) -> tuple[dict[str, ThroughCache], str]:
    """The calls in pieces through this cache, by names for messages, and what is not judged of it."""
    always = check.claims.premises.hides_later
    flagged = not always and Feature.CAUSAL in check.claims
    usual = _driven(check, call, past, causal=False, last=not always)
    if not usual:
        return {}, UNKNOWN_FORM
    causal = _driven(check, call, past, causal=True, last=False) if flagged else usual if always else {}
    ways = {name: {False: way, **({True: causal[name]} if name in causal else {})} for name, way in usual.items()}
    flag = call.options.spelled.get("is_causal", "")
    why = f"not judged with {flag!r}: no later piece is answered as in the whole" if flagged and not causal else ""
    return {name: ThroughCache(call, each) for name, each in ways.items()}, why


def _driven(check: ClaimCheck, call: RenamedCall, past: tuple[str, ...], causal: bool, last: bool) -> dict[str, Fed]:
    """The function in pieces through the first form of this cache that a short sequence shows."""
    fitted = fit(replace(SEQUENCE, causal=causal), check.claims)
    for dtype in () if isinstance(fitted, Unsupported) else DTYPES:
        problem = build(fitted, dtype).forward_only() if dtype in check.claims.dtypes else None
        taken = None if problem is None else _taken(check, call, problem)
        if problem is None or taken is None:
            continue
        forms = _forms(_inner(call), taken, past, last)
        cuts = CUTS if not takes_single_tokens(call) else STEPS
        if causal:  # a triangle that starts top left may be meant for the first piece alone
            forms = (replace(form, certain=False) for form in forms)
        found = first_driven(forms, partial(_rows, check, call, problem), _merged(problem), cuts)
        if found:
            found = {name: replace(way, widest=problem.query.itemsize) for name, way in found.items()}
            return _of_their_widths(check, call, found, replace(SEQUENCE, causal=causal), dtype)
    return {}


def _of_their_widths(
    check: ClaimCheck, call: RenamedCall, ways: dict[str, Fed], case: Case, dtype: str
) -> dict[str, Fed]:
    """The ways, for values as wide as keys alone where they refuse others, as one that has room for both alike does."""
    fitted = fit(case.sized(d_v=case.sizes.d_v // 2), check.claims)
    if Feature.VALUE_WIDTH not in check.claims or isinstance(fitted, Unsupported):
        return ways
    problem = build(fitted, dtype).forward_only()
    merged = _merged(problem)
    alike = {name: _rows(check, call, problem, way, merged) is None for name, way in ways.items()}
    return {name: replace(way, alike=alike[name]) for name, way in ways.items()}


def _taken(check: ClaimCheck, call: RenamedCall, problem: Problem) -> Taken | None:
    """How what is called at last is given its inputs."""
    recorder: list[Recorder] = []

    def recorded(function: Callable[..., Any]) -> Recorder:
        recorder.append(Recorder(function))
        return recorder[-1]

    watched = with_inner(call, recorded)
    if safe_call(lambda: check.adapt(Chosen(watched))(problem.fresh(), check.device)).error:
        return None
    heads, width = problem.num_kv_heads, problem.key.shape[-1]
    extents = {"B": problem.batch, "H": heads, "D": width, "E": heads * width}
    return safe_call(lambda: recorder[-1].taken(problem.query.shape[2], extents)).value


def _rows(check: ClaimCheck, call: RenamedCall, usual: Problem, way: Fed | None, problem: Problem) -> Array | None:
    """(B, L, H * d_v): what it answers in pieces, or as a whole, to inputs of such axes."""
    given = usual.with_arrays({name: _apart(getattr(problem, name), getattr(usual, name)) for name in INPUTS})
    strict = None if way is None else replace(way, strict=True)
    called = call if strict is None else with_inner(call, lambda inner: replace(strict, function=inner))
    with plainly():  # programs of short pieces take longer to compile than to run
        found = safe_call(lambda: answer(check.adapt(Chosen(called)), given.fresh(), check.device)).value
    if found is None or not np.isfinite(found.output).all() or found.output.ndim != given.query.ndim:
        return None
    return np.asarray(_together(found.output), np.float64)


def _merged(problem: Problem) -> Problem:
    """The problem with the widths of all heads side by side, (B, L, H * d)."""
    return problem.with_arrays({name: _together(getattr(problem, name)) for name in INPUTS})


def _together(array: Array) -> Array:
    rows = array.swapaxes(1, 2)
    return rows.reshape(*rows.shape[:2], -1)


def _apart(rows: Array, like: Array) -> Array:
    heads, width = like.shape[1], like.shape[3]
    return np.ascontiguousarray(rows.reshape(*rows.shape[:2], heads, width).swapaxes(1, 2)).astype(like.dtype)


def _forms(function: Callable[..., Any], taken: Taken, past: tuple[str, ...], last: bool) -> Iterator[Form[Fed]]:
    """The ways to drive a cache that names allow, the likelier first."""
    parameters = [*signature_of(function).parameters.values()]
    name, rest = f"through {', '.join(past)}", [p for p in parameters if p.name not in past]
    for places, certain in placed(rest):
        usual = Fed(function, taken, past, wanted_of(rest), places=places, last=last)
        for empty, others, clear in empties(function, past):
            for part in range(MOST_PARTS) if others else (0,):
                yield Form(name, replace(usual, empty=empty, part=part), certain and clear, True)
        for part in range(len(past) - 1 and 1, 1 + MOST_PARTS):
            yield Form(name, replace(usual, part=part), certain, True)
    for (places, _), (empty, part) in product(placed(rest), product(buffers(past), (0, 1))):
        yield Form(name, Fed(function, taken, past, wanted_of(rest), (1,), empty, places, part, last), False, True)
