"""Classes that are causal by an option that is on by default: as they are built without it, by the same equation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.built_otherwise import causal_by_default, with_options
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import Changed
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.template import Variant
from attention_conformance.spec.problem import Problem


def not_causal(
    make: Constructor, call: ModuleCall, variant: Variant, problem: Problem, device: str
) -> Iterator[tuple[str, Changed]]:
    """The run of the class without such an option, by a text, where its equation is known with it.

    Args:
        make: the class as its answer is known, of which nothing is held.
        call: how it is called.
        variant: of attention, with the option.
        problem: which shows that this is its equation.
        device: where it runs.
    """
    if make.held or not variant.premises.causal:
        return
    usual = PartEquations(make, Chosen(call.alone_with_itself(), ()), variant, {}, call.optional)
    seen = usual.shown(problem, device)
    if seen is None or not gives(partial(usual.expected, uses={}), seen[0], problem, seen[1]):
        return
    both_sides = replace(variant, premises=replace(variant.premises, causal=False))
    for name in causal_by_default(make):
        other = replace(usual, make=with_options(make, {name: False}), variant=both_sides)
        yield f"built with {name}=False", Changed(other, lambda problem: problem.but(causal=False))
