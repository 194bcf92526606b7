"""Numbers of parts: the runs that judge them by their equations, as a class is usually built and with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from attention_conformance.implementations.adapters.as_built import Run
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.added_input import added_input
from attention_conformance.implementations.discovery.modules.added_positions import added_positions
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import (
    TOKENS,
    Changed,
    Unseen,
    hiding,
    lengthened,
)
from attention_conformance.implementations.discovery.modules.not_causal import not_causal
from attention_conformance.implementations.discovery.modules.part_equations import equations
from attention_conformance.implementations.discovery.modules.seen_latents import hidden_others, seen_latents
from attention_conformance.implementations.discovery.modules.template import Variant
from attention_conformance.implementations.discovery.modules.transformer_xl import relative_positions
from attention_conformance.implementations.discovery.modules.twin_norms import twin_norms
from attention_conformance.spec.conventions import DefaultScale, NormKind, NormSpan
from attention_conformance.spec.problem import Problem


def numbers(
    make: Constructor, makes: Mapping[str, Constructor], call: ModuleCall, check: ClaimCheck, problem: Problem | None
) -> dict[str, Run]:
    """What its held parts do, and those that options add, by their equations, where these are known; pairs of norms.

    Args:
        make: the class as its answer is known.
        makes: the class as it is built with each of its options.
        call: how it is called.
        check: its claims.
        problem: which shows what its parts do.
    """
    if problem is None:
        return {}
    direct, runs = Chosen(call.alone_with_itself(), ()), dict[str, Run]()
    for how, each in {"": make, **_with_added_parts(make, makes)}.items():
        if (run := equations(each, direct, _variant(check), problem, check.device, call.optional)) is not None:
            runs |= _harder(f"{how}, " * bool(how) + f"with the numbers of {', '.join(run.uses)}", run, check)
    if (relative := relative_positions(make, call, _variant(check), problem, check.device)) is not None:
        runs |= _harder(f"with the numbers of {', '.join(relative.uses)}", relative, check)
    runs |= dict(not_causal(make, call, _variant(check), problem, check.device))
    runs |= added_positions(make, call, _variant(check), problem, check.device)
    runs |= seen_latents(make, call)
    runs |= hidden_others(make, call, problem, check.device)
    runs |= added_input(make, call, problem, check.device)
    for how, each in {"": make, **makes}.items():
        if (norms := twin_norms(each, direct, problem)) is not None:
            runs[f"{how}, " * bool(how) + "where a norm changes the answer"] = norms
    return runs


def _harder(how: str, run: Run, check: ClaimCheck) -> dict[str, Run]:
    """The run, in a long sequence and under a mask, too."""
    hidden, long = hiding(check.claims), f"{how}, in a sequence of {TOKENS} tokens"
    runs: dict[str, Run] = {how: run, long: Changed(run, lengthened)}
    return runs if hidden is None else {**runs, f"{how}, where a mask hides the last tokens": Unseen(run, hidden)}


def _variant(check: ClaimCheck) -> Variant:
    """The variant of attention that its claims state."""
    premises, conventions = check.claims.premises, check.claims.conventions
    unscaled = conventions.default_scale is DefaultScale.ONE or premises.scale is not None
    cosine, bare = conventions.norm_kind is NormKind.L2, conventions.norm_span is NormSpan.BARE
    normalised = premises.qk_norm and bare and conventions.norm_kind is not NormKind.LAYER
    variant = Variant(premises, conventions.rotary_pairing, scale=0.0 if unscaled else -0.5)
    return replace(variant, normalised=normalised, cosine=normalised and cosine)


def _with_added_parts(make: Constructor, makes: Mapping[str, Constructor]) -> dict[str, Constructor]:
    """The class as it is built otherwise, with the parameters held that it has more then; by the text for each way.

    `make` is the class as its answer is known.
    """
    usual, found = safe_call(partial(make, make.width, make.heads)).value, {}
    known = {path for path, _ in usual.named_parameters()} if usual is not None else set()
    for how, each in makes.items() if known else ():
        other = replace(make, options=each.options, changed=each.changed)
        module = safe_call(partial(other, make.width, make.heads)).value
        added = [] if module is None else [path for path, _ in module.named_parameters() if path not in known]
        if added:
            found[how] = replace(other, held={**make.held, **dict.fromkeys(added, "zeros")})
    return found
