"""Closed-form gradients of every input and parameter (chapter gradients), in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference.pipeline import Trace, merge_heads, split_heads
from spec.features import EmptyRow, Scope
from spec.problems import Problem

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Backward:
    """The intermediates of the backward pass at the op level, (B, H, ., .).

    Attributes:
        heads: d loss / d heads, (B, H, Lq, d_v).
        weights: d loss / d weights, (B, H, Lq, Lk).
        centre: sum over keys of weights times their gradients, (B, H, Lq, 1).
        scores: d loss / d scores.
        query, key, value: d loss / d of the heads' inputs.
    """

    heads: Floats
    weights: Floats
    centre: Floats
    scores: Floats
    query: Floats
    key: Floats
    value: Floats


def backward(trace: Trace, heads: Floats) -> Backward:
    """dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(P dP)), dQ = scale dS K, dK = scale dS^T Q.

    Rows that see nothing pass no gradient through their scores, whatever they answer.
    """
    d_weights = heads @ trace.value.swapaxes(-1, -2)
    centre = (trace.weights * d_weights).sum(-1, keepdims=True)
    constant = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    d_scores = np.where(constant, 0.0, trace.weights * (d_weights - centre))
    return Backward(
        heads=heads,
        weights=d_weights,
        centre=centre,
        scores=d_scores,
        query=trace.scale * d_scores @ trace.key,
        key=trace.scale * d_scores.swapaxes(-1, -2) @ trace.query,
        value=trace.weights.swapaxes(-1, -2) @ heads,
    )


def cotangent_of_heads(problem: Problem) -> Floats:
    """(B, H, Lq, d_v): the output's cotangent carried back through the output projection and the merge."""
    assert problem.cotangent is not None
    cotangent = problem.cotangent.astype(np.float64)
    if problem.scope is Scope.OP:
        return cotangent
    if "w_o" in problem.parameters:
        cotangent = cotangent @ problem.parameters["w_o"].astype(np.float64).T
    return split_heads(cotangent, problem.num_heads)


def gradients(problem: Problem, trace: Trace) -> dict[str, Floats]:
    """d loss / d of everything in the problem's `needs`, with loss = sum(output * cotangent)."""
    step = backward(trace, cotangent_of_heads(problem))
    found = _op_gradients(step) if problem.scope is Scope.OP else _module_gradients(problem, trace, step)
    if problem.attn_mask is not None and problem.attn_mask.dtype.kind != "b":
        found["attn_mask"] = unbroadcast(step.scores, problem.attn_mask.shape)
    return {name: found[name] for name in problem.needs}


def unbroadcast(array: Floats, shape: tuple[int, ...]) -> Floats:
    """The array summed over the axes along which `shape` was broadcast to it."""
    summed = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    return np.asarray(summed.sum(axis=axes, keepdims=True)).reshape(shape)


def _op_gradients(step: Backward) -> dict[str, Floats]:
    return {"query": step.query, "key": step.key, "value": step.value}


def _module_gradients(problem: Problem, trace: Trace, step: Backward) -> dict[str, Floats]:
    wide = problem.widened()
    found: dict[str, Floats] = {}
    roles = {"query": ("q", step.query), "key": ("k", step.key), "value": ("v", step.value)}
    for name, (role, gradient) in roles.items():
        projected, inputs = merge_heads(gradient), getattr(wide, name)
        found[name] = projected @ wide.parameters[f"w_{role}"].T
        found[f"w_{role}"] = np.einsum("blx,bly->xy", inputs, projected)
        found[f"b_{role}"] = projected.sum((0, 1))
    if "w_o" in wide.parameters:
        cotangent = np.asarray(wide.cotangent, dtype=np.float64)
        found["w_o"] = np.einsum("blx,bly->xy", merge_heads(trace.heads), cotangent)
        found["b_o"] = cotangent.sum((0, 1))
    return shared(problem, found)


def shared(problem: Problem, found: dict[str, Floats]) -> dict[str, Floats]:
    """The gradients with those of an input that plays several roles added up under its first name."""
    first: dict[int, str] = {}
    for name in ("query", "key", "value"):
        original = first.setdefault(id(getattr(problem, name)), name)
        if original != name:
            found[original] = found[original] + found.pop(name)
    return found
