"""The node cases of Attention and RotaryEmbedding in the package onnx, as problems of the specification."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.reference.bounds.attention import forward_bounds
from attention_conformance.reference.bounds.extensions import route_bound
from attention_conformance.reference.bounds.precision import precision
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.spec.conventions import Conventions, RotaryPairing
from attention_conformance.spec.features import Extension, PositionIds, RotaryTables, Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.comparison import compare

ATTENTION, ROTARY = "Attention", "RotaryEmbedding"
INPUTS: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"),
    ROTARY: ("input", "cos_cache", "sin_cache", "position_ids"),
}
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("Y", "present_key", "present_value", "qk_matmul_output"),
    ROTARY: ("output",),
}
KNOWN = {
    *("scale", "is_causal", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode", "softmax_precision"),
    *("left_window_size", "right_window_size", "interleaved", "rotary_embedding_dim", "num_heads"),
}
"""The attributes that are understood here."""


@dataclass(frozen=True, eq=False)
class OnnxCase:
    """One case: what is given and what is expected, by the names of the operator."""

    name: str
    operator: str
    attributes: Mapping[str, Any]
    given: Mapping[str, Array]
    wanted: Mapping[str, Array]


class NotExpressibleError(Exception):
    """A case that is no problem of the specification; the message states why."""


def onnx_cases(operator: str) -> Iterator[OnnxCase]:
    """Those of one operator; the same ones expanded into other operators are left out.

    Raises:
        ImportError: onnx is not installed.
    """
    from onnx import helper
    from onnx.backend.test.case import node as cases

    # The function that collects them runs the cases of all operators, which takes a minute.
    importlib.import_module(f"{cases.__name__}.{operator.lower()}")
    for case in list(cases._NodeTestCases):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != operator:
            continue
        node = nodes[0]
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        for inputs, outputs in case.data_sets:
            names = zip(INPUTS[operator], node.input, strict=False), zip(OUTPUTS[operator], node.output, strict=False)
            filled = ([own for own, used in each if used] for each in names)
            given, wanted = (
                {name: np.asarray(x) for name, x in zip(own, arrays, strict=True)}
                for own, arrays in zip(filled, (inputs, outputs), strict=True)
            )
            yield OnnxCase(case.name, operator, attributes, given, wanted)


def difference(case: OnnxCase) -> str:
    """How the expected answer differs from the reference, beyond its rounding bound; empty if it does not.

    Raises:
        NotExpressibleError: there is no such problem.
    """
    if odd := case.attributes.keys() - KNOWN:
        raise NotExpressibleError(f"attribute {min(odd)}")
    parts = _attention_parts(case) if case.operator == ATTENTION else _rotary_parts(case)
    for name, array in case.wanted.items():
        expected = parts[name]
        differs = compare(name, array, expected, array.dtype.name)
        if differs.kind is not None:
            return differs.message
    return ""


def imported(case: OnnxCase) -> tuple[Problem, Expected]:
    """The problem with ONNX's own answer: a right one may be off by its own rounding, and by that of ONNX's.

    Raises:
        NotExpressibleError: there is no such problem, or its answer is another one.
    """
    if differs := difference(case):
        raise NotExpressibleError(differs)
    problem = attention_problem(case)
    reference = solve(problem).parts["output"]
    own = _heads(case.wanted["Y"], case.attributes.get("q_num_heads")).astype(np.float64)
    apart = np.where(np.isfinite(own) & np.isfinite(reference.value), np.abs(own - reference.value), 0.0)
    return problem, Expected(own, reference.bound + apart)


def _heads(rows: Array, heads: int | None) -> Array:
    """(B, L, H * d) -> (B, H, L, d); four axes stay as they are."""
    if rows.ndim == 4:
        return rows
    if not heads:
        raise NotExpressibleError("three axes without a number of heads")
    return rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(expected: Expected, like: Array) -> Expected:
    """(B, H, L, d) -> (B, L, H * d) where the answer has three axes."""
    if like.ndim == 4:
        return expected
    value, bound = (x.swapaxes(1, 2).reshape(like.shape) for x in (expected.value, expected.bound))
    return Expected(value, bound)


def _attention_parts(case: OnnxCase) -> dict[str, Expected]:
    problem = attention_problem(case)
    solution = solve(problem)
    parts = {"Y": _joined(solution.parts["output"], case.wanted["Y"])}
    for name, rows in (("present_key", problem.key), ("present_value", problem.value)):
        parts[name] = Expected(rows.astype(np.float64), np.zeros(rows.shape))
    if "qk_matmul_output" in case.wanted:
        parts["qk_matmul_output"] = _scores(case, problem, solution)
    return parts


def attention_problem(case: OnnxCase) -> Problem:
    """Of a case of Attention, whose keys and values are those of the past and the given ones."""
    given, of = case.given, case.attributes
    query = _heads(given["Q"], of.get("q_num_heads"))
    key, value = (_heads(given[name], of.get("kv_num_heads")) for name in "KV")
    start: int | None = None
    if "past_key" in given:
        start = given["past_key"].shape[2]
        key, value = (np.concatenate([given[f"past_{n}"], x], 2) for n, x in (("key", key), ("value", value)))
    lengths, extras = given.get("nonpad_kv_seqlen"), {}
    if lengths is not None:
        extras = {"query_starts": lengths.astype(np.int64) - query.shape[2]}
    sides = (None if (size := int(of.get(f"{side}_window_size", -1))) < 0 else size for side in ("left", "right"))
    left, right = sides
    extension = Extension(
        window_left=left,
        window_right=right,
        softcap=of.get("softcap") or None,
        query_start=start,
        query_starts=bool(extras),
    )
    return Problem(
        scope=Scope.OP,
        query=query,
        key=key,
        value=value,
        num_heads=query.shape[1],
        attn_mask=_mask(given.get("attn_mask"), key.shape[2]),
        valid_lens=lengths,
        causal=bool(of.get("is_causal", 0)),
        scale=of.get("scale"),
        extension=extension,
        extras=extras,
    )


def _mask(mask: Array | None, keys: int) -> Array | None:
    """With a last axis as long as the keys: what is missing there is hidden."""
    if mask is None or mask.shape[-1] in (1, keys):
        return mask
    hidden = False if mask.dtype.kind == "b" else -np.inf
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])], constant_values=hidden)


def _scores(case: OnnxCase, problem: Problem, solution: Solution) -> Expected:
    """The product after one of its stages: 0 scaled, 1 capped, 2 masked, 3 the weights."""
    mode, trace = case.attributes.get("qk_matmul_output_mode", 0), solution.trace
    if mode == 3:
        return solution.parts["weights"]
    bounds = forward_bounds(problem, trace, precision(problem.dtype))
    if mode == 0 or (mode == 1 and trace.softcap is None):
        return Expected(trace.products, bounds.products)
    if mode == 1:
        return Expected(trace.capped, bounds.scores)
    return Expected(trace.scores, bounds.scores)


def _rotary_parts(case: OnnxCase) -> dict[str, Expected]:
    return {"output": _joined(rotated(*rotary_problem(case)), case.wanted["output"])}


def rotary_problem(case: OnnxCase) -> tuple[Problem, RotaryPairing]:
    """Rows that are rotated as queries and keys, and no more."""
    given, of = case.given, case.attributes
    rows, ids = _heads(given["input"], of.get("num_heads")), given.get("position_ids")
    extras = {"rotary_cos": given["cos_cache"], "rotary_sin": given["sin_cache"]}
    if ids is not None:
        extras |= {f"{role}_positions": ids for role in ("query", "key")}
    extension = Extension(
        rotary_tables=RotaryTables.TOKENS if ids is None else RotaryTables.POSITIONS,
        position_ids=PositionIds.NONE if ids is None else PositionIds.ASCENDING,
    )
    pairing = RotaryPairing.INTERLEAVED if of.get("interleaved") else RotaryPairing.HALVES
    return Problem(Scope.OP, rows, rows, rows, num_heads=rows.shape[1], extension=extension, extras=extras), pairing


def rotated(problem: Problem, pairing: RotaryPairing) -> Expected:
    """The queries after the rotation."""
    route = Pipeline().run(problem, Conventions(rotary_pairing=pairing)).routes.query
    return Expected(route.result, route_bound(route, np.zeros(problem.query.shape), precision(problem.dtype)))
