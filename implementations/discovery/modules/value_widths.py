"""Values of a width that the constructor takes as a parameter, d_v, where keys have another one, d_k."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.implementations.discovery.claim_checks import OTHER_WIDTHS, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.signatures import of_constructor
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

OF_HEAD = ("d_v", "dim_v", "v_head_dim", "head_dim_v", "value_head_dim")
OF_ALL_HEADS = ("v_channels", "value_channels", "total_value_dim")
"""Names of the width of the values of one head, and of all."""
OTHER = PLAIN.sized(d_v=OTHER_WIDTHS[0])
"""A case whose values are not as wide as its keys."""


def with_value_width(check: ClaimCheck, make: Constructor) -> ClaimCheck:
    """The check with values of another width than keys, where its constructor is given that, and it answers then."""
    wider = replace(check, claims=replace(check.claims, features=check.claims.features | {Feature.VALUE_WIDTH}))
    return check if not _own_name(make) or wider.run(OTHER).error else wider


def of_width(make: Constructor, problem: Problem) -> Constructor:
    """The class as it is built for the values of a problem."""
    name = _own_name(make)
    if not name or not {"w_q", "w_v"} <= problem.parameters.keys():
        return make
    all_keys, all_values = (problem.parameters[each].shape[-1] for each in ("w_q", "w_v"))
    width = all_values // max(1, problem.num_kv_heads)
    if width == all_keys // max(1, problem.num_heads):
        return make
    return replace(make, options={**make.options, name: width if name in OF_HEAD else all_values})


def _own_name(make: Constructor) -> str:
    """Its parameter for the width of values, which it is given or may leave out; empty for none."""
    optional = (name for name, p in of_constructor(make.kind).parameters.items() if p.default is None)
    return next((name for name in (*make.sizes, *optional) if name in (*OF_HEAD, *OF_ALL_HEADS)), "")
