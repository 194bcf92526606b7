"""Closed-form gradients of every input and parameter (chapter gradients), in float64."""

from dataclasses import dataclass
from math import prod

import numpy as np

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.reference.latent import of_latents
from attention_conformance.reference.pipeline import Inputs, Trace, gated, merge_heads, split_heads
from attention_conformance.reference.positions import buckets
from attention_conformance.reference.stages import gather
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.gates_and_splits import OutputGates
from attention_conformance.spec.problem import Problem


@dataclass(frozen=True, eq=False)
class Backward:
    """The intermediates of the backward pass at the op level, (B, H, ., .).

    Attributes:
        heads: d loss / d mixed heads, before their gates, (B, H, Lq, d_v).
        weights: d loss / d weights, (B, H, Lq, Lk).
        centre: sum over keys of weights times their gradients, (B, H, Lq, 1).
        gap: the gradients of weights without it.
        scores: d loss / d scores.
        products: d loss / d scaled products, before the softcap.
        query, key, value: d loss / d of what is multiplied; see `Trace`.
    """

    heads: Floats
    weights: Floats
    centre: Floats
    gap: Floats
    scores: Floats
    products: Floats
    query: Floats
    key: Floats
    value: Floats


def backward(trace: Trace, heads: Floats) -> Backward:
    """dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(P dP)), dQ = scale dS K, dK = scale dS^T Q.

    With dropout P is the dropped P where it meets V, and dP passes through the same factors; the softcap multiplies
    dS by its slope. Rows that see nothing pass no gradient through their scores, whatever they answer.

    Args:
        trace: the forward pass.
        heads: d loss / d heads, (B, H, Lq, d_v), after the gates.
    """
    d_mixed = gated(heads, trace.gates, trace.opened)
    d_weights = d_mixed @ trace.value.swapaxes(-1, -2)
    d_weights = d_weights if trace.kept is None else d_weights * trace.kept
    centre = (trace.weights * d_weights).sum(-1, keepdims=True)
    constant = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    gap = d_weights - centre
    d_scores = np.where(constant, 0.0, trace.weights * gap)
    d_products = d_scores if trace.softcap is None else d_scores * slope(trace)
    return Backward(
        heads=d_mixed,
        weights=d_weights,
        centre=centre,
        gap=gap,
        scores=d_scores,
        products=d_products,
        query=trace.scale * d_products @ trace.key,
        key=trace.scale * d_products.swapaxes(-1, -2) @ trace.query,
        value=trace.dropped.swapaxes(-1, -2) @ d_mixed,
    )


def slope(trace: Trace) -> Floats:
    """(B, H, Lq, Lk): d capped / d products = 1 - tanh^2."""
    assert trace.softcap is not None
    return np.asarray(1.0 - (trace.capped / trace.softcap) ** 2)


def to_inputs(trace: Trace, step: Backward) -> Inputs:
    """The gradients carried back from what is multiplied to the heads' inputs: groups summed, then along the routes."""
    key, value = (of_given_keys(trace, rows) for rows in (step.key, step.value))
    return Inputs(trace.routes.query.back(step.query), trace.routes.key.back(key), value)


def of_given_keys(trace: Trace, rows: Floats) -> Floats:
    """(B, H, Lk, d) -> (B, Hk, Lk, d): summed over each group, without extra keys."""
    given = trace.inputs.key.shape
    return gather(rows[..., : given[-2], :], given[-3], trace.order)


def cotangent_of_heads(problem: Problem) -> Floats:
    """(B, H, Lq, d_v): the output's cotangent carried back through the output projection and the merge."""
    assert problem.cotangent is not None
    cotangent = problem.cotangent.astype(np.float64)
    if problem.scope is Scope.OP:
        return cotangent
    if "w_o" in problem.parameters:
        cotangent = cotangent @ problem.parameters["w_o"].astype(np.float64).swapaxes(-1, -2)
    return split_heads(cotangent, problem.num_heads)


def gradients(problem: Problem, trace: Trace, step: Backward) -> dict[str, Floats]:
    """d loss / d of everything in the problem's `needs`, with loss = sum(output * cotangent)."""
    inputs = to_inputs(trace, step)
    if problem.scope is Scope.OP:
        by_name = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        if "w_uk" in problem.extras:
            by_name |= of_latents(problem, inputs.key, inputs.value)
    else:
        by_name = _module_gradients(problem, trace, inputs)
    if problem.attn_mask is not None and problem.attn_mask.dtype.kind != "b":
        by_name["attn_mask"] = unbroadcast(given_keys(problem, step.scores), problem.attn_mask.shape)
    by_name |= _extension_gradients(problem, trace, step, cotangent_of_heads(problem))
    return {name: by_name[name] for name in problem.needs}


def given_keys(problem: Problem, columns: Floats) -> Floats:
    """(B, H, Lq, Lk) without the columns of extra keys and the sink."""
    return columns[..., : problem.key.shape[-2]]


def _extension_gradients(problem: Problem, trace: Trace, step: Backward, cotangent: Floats) -> dict[str, Floats]:
    """Of sinks, relative biases, gates, gains of norms, and the learned extra key and value (bias_kv)."""
    by_name: dict[str, Floats] = {}
    if "sinks" in problem.extras:
        by_name["sinks"] = step.scores[..., -1].sum((-3, -1))
    if "relative_bias" in problem.extras:
        by_name["relative_bias"] = by_distance(problem, trace, given_keys(problem, step.scores))
    if "bucketed_bias" in problem.extras:
        by_name["bucketed_bias"] = by_bucket(problem, trace, given_keys(problem, step.scores))
    if trace.gates is not None:
        by_name["head_gates"] = (cotangent * gated(trace.mixed, None, trace.opened)).sum((-4, -2, -1))
    if trace.opened is not None:
        by_output = cotangent * trace.heads * (1.0 - trace.opened)
        by_name["gate_logits"] = by_output if per_channel(problem) else by_output.sum(-1, keepdims=True)
    if "query_norm" in problem.extras:
        for name, route, rows in (
            ("query_norm", trace.routes.query, step.query),
            ("key_norm", trace.routes.key, of_given_keys(trace, step.key)),
        ):
            normed, given, gradient = route.at_norm(rows)
            by_name[name] = normed.of_gain(given, gradient)
    if "bias_k" in problem.parameters:
        for name, rows in (("bias_k", step.key), ("bias_v", step.value)):
            by_name[name] = of_extra_key(problem, trace, rows)
    return by_name


def per_channel(problem: Problem) -> bool:
    """Whether each channel of the output has a gate of its own."""
    return problem.extension.output_gates is OutputGates.CHANNEL


def by_distance(problem: Problem, trace: Trace, scores: Floats) -> Floats:
    """(H, 2 R + 1): (B, H, Lq, Lk) summed over what shares an entry of the table of relative biases."""
    most = problem.extension.relative_bias
    return _by_entry(scores, trace.places.clipped(most), 2 * most + 1)


def by_bucket(problem: Problem, trace: Trace, scores: Floats) -> Floats:
    """(buckets, H): the same for what shares a bucket."""
    entries = buckets(trace.places, problem.extension)
    return _by_entry(scores, entries, problem.extension.bucketed_bias).swapaxes(-1, -2)


def _by_entry(scores: Floats, entries: Integers, width: int) -> Floats:
    """(H, width): (B, H, Lq, Lk) summed over what has the same entry (B, Lq, Lk)."""
    heads = scores.swapaxes(-4, -3)
    tables = np.arange(prod(heads.shape[:-3])).reshape(*heads.shape[:-3], 1, 1, 1)
    at = np.broadcast_to(entries, heads.shape) + width * tables
    sums = np.bincount(at.ravel(), heads.ravel(), minlength=width * tables.size)
    return np.asarray(sums, dtype=np.float64).reshape(*heads.shape[:-3], width)


def of_extra_key(problem: Problem, trace: Trace, rows: Floats) -> Floats:
    """(Hk * d,): the rows (B, H, Lk, d) at the learned extra key, summed over samples and groups."""
    at = problem.key.shape[-2]
    gathered = gather(rows[..., at : at + 1, :], problem.num_kv_heads, trace.order)
    return np.asarray(gathered.sum(-4)).reshape(*rows.shape[:-4], -1)


def unbroadcast(array: Floats, shape: tuple[int, ...]) -> Floats:
    """The array summed over the axes along which `shape` was broadcast to it."""
    summed = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    return np.asarray(summed.sum(axis=axes, keepdims=True)).reshape(shape)


def _module_gradients(problem: Problem, trace: Trace, step: Inputs) -> dict[str, Floats]:
    wide = problem.widened()
    by_name: dict[str, Floats] = {}
    roles = {"query": ("q", step.query), "key": ("k", step.key), "value": ("v", step.value)}
    for name, (role, gradient) in roles.items():
        projected, inputs = merge_heads(gradient), getattr(wide, name)
        by_name[name] = projected @ wide.parameters[f"w_{role}"].swapaxes(-1, -2)
        by_name[f"w_{role}"] = tokens(inputs).swapaxes(-1, -2) @ tokens(projected)
        by_name[f"b_{role}"] = tokens(projected).sum(-2)
    if "w_o" in wide.parameters:
        cotangent = np.asarray(wide.cotangent, dtype=np.float64)
        by_name["w_o"] = tokens(merge_heads(trace.heads)).swapaxes(-1, -2) @ tokens(cotangent)
        by_name["b_o"] = tokens(cotangent).sum(-2)
    return shared(problem, by_name)


def tokens(array: Floats) -> Floats:
    """(B, L, width) -> (B * L, width)."""
    return array.reshape(*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1])


def shared(problem: Problem, by_name: dict[str, Floats]) -> dict[str, Floats]:
    """The gradients with those of an input that plays several roles added up under its first name."""
    first: dict[int, str] = {}
    for name in ("query", "key", "value"):
        original = first.setdefault(id(getattr(problem, name)), name)
        if original != name:
            by_name[original] = by_name[original] + by_name.pop(name)
    return by_name
