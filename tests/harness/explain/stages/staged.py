"""Stages: attention as a list of named stages over named numbers, each of which can be edited; gradients included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.reference.norms import epsilon_of
from attention_conformance.reference.positions import positions, rotated_at
from attention_conformance.reference.visibility import in_force, visibility
from attention_conformance.spec.conventions import (
    Conventions,
    DefaultScale,
    GroupOrder,
    NormGain,
    NormKind,
    NormOrder,
    NormSpan,
)
from attention_conformance.spec.features import PositionIds, QkNorm
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.stages.buckets import bucketed
from attention_conformance.tests.harness.explain.stages.emptied import answered_rows
from attention_conformance.tests.harness.explain.stages.rotations import from_tables, pairs_turned
from attention_conformance.tests.harness.explain.stages.stored import expanded, multiplied

State: TypeAlias = dict[str, Any]
"""Numbers by name: the arrays of the problem as float64 tensors, its options, and what stages have made of them."""
INFINITY = float("inf")


@dataclass(frozen=True, eq=False)
class Stage:
    """One step.

    Attributes:
        name: a noun, as a sentence about a mistake would call it.
        change: the entries that it adds or replaces.
        reads: the entries that it reads, the one that it replaces first.
        needs: the entry without which it does nothing; empty: it is always made.
    """

    name: str
    change: Callable[[State], State]
    reads: tuple[str, ...]
    needs: str = ""

    def active(self, state: State) -> bool:
        return not self.needs or state.get(self.needs) is not None


def opened(problem: Problem, conventions: Conventions) -> State:
    """What the first stage gets.

    Raises:
        ValueError: the answer is drawn at random.
    """
    if problem.extension.dropout:
        raise ValueError("dropped weights are drawn by each implementation for itself")
    problem = in_force(problem, conventions)
    given = {n: to_tensor(a) for n, a in problem.widened().fresh().arrays().items()}
    for name in problem.needs if problem.cotangent is not None else ():
        given[name] = given[name].detach().requires_grad_()
    places, extension = positions(problem, conventions), problem.extension
    state: State = {**given, "needs": {name: given[name] for name in problem.needs}}
    state["key"] = state.get("key", state["query"])
    state["value"] = state.get("value", state["key"])
    state |= {f"{n}_places": torch.from_numpy(np.array(getattr(places, n))) for n in ("query", "key")}
    if places.query_document.any() or places.key_document.any() or not places.together.all():
        state |= {
            f"{n}_documents": torch.from_numpy(np.array(getattr(places, f"{n}_document"))) for n in ("query", "key")
        }
    if extension.position_ids is not PositionIds.NONE:
        ids = zip(("query_ids", "key_ids"), rotated_at(problem, places), strict=True)
        state |= {name: torch.from_numpy(np.array(own)) for name, own in ids}
    left, right = extension.window_left, extension.window_right
    own = 1 if str(conventions.window_count) == "including" else 0
    state |= {"window_left": left, "window_right": right, "window_own": own}
    state |= {"num_heads": problem.num_heads, "num_kv_heads": problem.num_kv_heads, "keys": problem.key.shape[-2]}
    state |= {"softcap": extension.softcap, "rotary_base": extension.rotary_base, "rotary_dim": extension.rotary_dim}
    state |= {"max_distance": extension.max_distance, "bidirectional": extension.bidirectional}
    state |= {"given_scale": problem.scale, "rotary_tables": extension.rotary_tables}
    state["inputs"] = str(problem.dtype)
    state["working"] = torch.float64 if problem.dtype == "float64" else torch.float32
    if extension.qk_norm is not QkNorm.NONE:
        late = conventions.norm_order is NormOrder.LAST
        epsilon = "late_epsilon" if late else "norm_epsilon"
        state |= {epsilon: epsilon_of(problem, conventions)}
    state |= {"causal": problem.causal or None, "zero_key": extension.zero_attn or None, "hidden": -INFINITY}
    state |= {"conventions": conventions, "empty_rows": visibility(problem, conventions).answers, "soft": False}
    if problem.valid_lens is not None:
        lengths = state["valid_lens"].long()
        lengths = lengths[:, None, None, None] if lengths.ndim == 1 else lengths[:, None, :, None]
        state["valid"] = torch.arange(problem.key.shape[-2]) < lengths
    return state


def _projected(role: str, entry: str, heads: str) -> Iterator[Stage]:
    def project(state: State) -> State:
        bias = state.get(f"b_{role}")
        made = state[entry] @ state[f"w_{role}"]
        return {entry: made if bias is None else made + bias}

    def split(state: State) -> State:
        return {entry: state[entry].unflatten(-1, (state[heads], -1)).transpose(1, 2)}

    yield Stage(f"projection of the {entry}", project, (entry, f"w_{role}", f"b_{role}"), f"w_{role}")
    yield Stage(f"split of the {entry} into heads", split, (entry,), f"w_{role}")


def normed(entry: str, epsilon: str = "norm_epsilon", of_size: Callable[[Tensor], Tensor] = Tensor.clone) -> Stage:
    """Rows divided by their size, of which another gradient may be taken."""

    def divide(state: State) -> State:
        rows, gain, conventions = state[entry], state.get(f"{entry}_norm"), state["conventions"]
        together = conventions.norm_span is NormSpan.WIDTH
        over = (-3, -1) if together else (-1,)
        rows = rows - rows.mean(over, keepdim=True) if conventions.norm_kind is NormKind.LAYER else rows
        if conventions.norm_kind is NormKind.L2:
            size = rows.square().sum(over, keepdim=True).clamp(min=state[epsilon] ** 2).sqrt()
        else:
            size = (rows.square().mean(over, keepdim=True) + state[epsilon]).sqrt()
        unit = rows / of_size(size)
        if gain is None:
            return {entry: unit}
        gain = gain + 1.0 if conventions.norm_gain is NormGain.PLUS_ONE else gain
        return {entry: unit * (gain.view(rows.shape[-3], 1, -1) if together else gain)}

    return Stage(f"norm of the {entry}", divide, (entry, f"{entry}_norm", epsilon), epsilon)


def _angles(places: Tensor, frequencies: Tensor) -> Tensor:
    return places * frequencies


def rotated(entry: str, angles: Callable[[Tensor, Tensor], Tensor] = _angles) -> Stage:
    """Pairs rotated by angles that are made of positions and frequencies; others than their products may be taken."""

    def rotate(state: State) -> State:
        rows, base = state[entry], state["rotary_base"]
        width = rows.shape[-1] // 2 * 2 if state["rotary_dim"] is None else state["rotary_dim"]
        ids = state.get(f"{entry}_ids")
        places = state[f"{entry}_places"] if ids is None else ids
        made = angles(places[:, None, :, None], base ** (-torch.arange(0, width, 2).double() / width))
        return {entry: pairs_turned(rows, made.cos(), made.sin(), state["conventions"].rotary_pairing)}

    return Stage(f"rotation of the {entry}", rotate, (entry, f"{entry}_places", "rotary_base"), "rotary_base")


def _turned(entry: str) -> Stage:
    reads = (entry, f"{entry}_places", "rotary_cos", "rotary_sin")
    return Stage(f"rotation of the {entry} by tables", lambda s: {entry: from_tables(s, entry)}, reads, "rotary_cos")


def _learned(state: State) -> State:
    made = {}
    for entry, name in (("key", "bias_k"), ("value", "bias_v")):
        rows = state[entry]
        learned = state[name].view(1, rows.shape[1], 1, -1).expand(len(rows), -1, -1, -1)
        made[entry] = torch.cat([rows, learned], -2)
    return made


def _zero_key(state: State) -> State:
    return {entry: torch.nn.functional.pad(state[entry], (0, 0, 0, 1)) for entry in ("key", "value")}


def _repeated(entry: str) -> Stage:
    def repeat(state: State) -> State:
        rows, num_heads = state[entry], state["num_heads"]
        times = num_heads // max(1, rows.shape[1])
        if times == 1:
            return {}
        tiled = state["conventions"].group_order is GroupOrder.TILED
        return {entry: rows.repeat(1, times, 1, 1) if tiled else rows.repeat_interleave(times, 1)}

    return Stage(f"repetition of the {entry} heads", repeat, (entry,))


def _default_scale(state: State) -> State:
    one = state["conventions"].default_scale is DefaultScale.ONE
    given = state["given_scale"]
    return {"scale": (1.0 if one else state["key"].shape[-1] ** -0.5) if given is None else given}


def _ahead(state: State) -> Tensor:
    """(B, 1, Lq, Lk): so far each key stands after the query."""
    key, query = state["key_places"], state["query_places"]
    ahead: Tensor = key[:, None, None, :] - query[:, None, :, None]
    return ahead


def _on_given(state: State, of: Callable[[Tensor], Tensor]) -> State:
    """The scores, changed for the keys that were given, not for those that follow."""
    given, rest = state["scores"][..., : state["keys"]], state["scores"][..., state["keys"] :]
    made = of(given)
    return {"scores": torch.cat([made, rest], -1) if rest.shape[-1] else made}


def _hidden(state: State, allowed: Tensor) -> State:
    """Scores of keys that may not be seen as minus infinity; weights, where they are none any more, as 0."""
    if (by := state.get("dimmed")) is not None:
        return _on_given(state, lambda scores: scores - by * (~allowed).double())
    filling = 0.0 if state["soft"] else state["hidden"]
    return _on_given(state, lambda scores: scores.masked_fill(~allowed, filling))


def _masked(state: State) -> State:
    mask = state["attn_mask"]
    if mask.dtype is torch.bool:
        return _hidden(state, mask)
    finite = mask.masked_fill(mask == -INFINITY, 0.0)
    state = state | _on_given(state, lambda scores: scores + finite)
    return _hidden(state, mask > -INFINITY)


def _biased(state: State) -> State:
    most = state["relative_bias"].shape[-1] // 2
    entries = _ahead(state)[:, 0].clamp(-most, most) + most
    return _on_given(state, lambda scores: scores + state["relative_bias"][:, entries].transpose(0, 1))


def _windowed(state: State) -> State:
    ahead, left, right = _ahead(state), state["window_left"], state["window_right"]
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if left is not None:
        allowed = allowed & (ahead >= state["window_own"] - left)
    return _hidden(state, allowed if right is None else allowed & (ahead <= right))


def _of_documents(state: State) -> State:
    return _hidden(state, state["query_documents"][:, None, :, None] == state["key_documents"][:, None, None, :])


def _sunk(state: State) -> State:
    scores = state["scores"]
    return {"scores": torch.cat([scores, state["sinks"][None, :, None, None].expand(*scores.shape[:-1], 1)], -1)}


def _softmax(state: State) -> State:
    scores = state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    finite = scores.masked_fill(empty, 0.0)
    weights = answered_rows(torch.softmax(finite, -1), empty, state)
    log = torch.logsumexp(finite, -1).masked_fill(empty[..., 0], -INFINITY) if scores.shape[-1] else None
    return {"scores": weights, "log_sum_exp": log, "soft": True}


def _mixed(state: State) -> State:
    weights = state["scores"][..., : state["value"].shape[-2]]
    return {"weights": weights, "heads": weights @ state["value"]}


def _output(state: State) -> State:
    made = state["output"] @ state["w_o"]
    return {"output": made if state.get("b_o") is None else made + state["b_o"]}


def _taken(entry: str, source: str, of: Callable[[Tensor], Tensor]) -> Callable[[State], State]:
    return lambda state: {entry: of(state[source])}


SCORES = ("scores",)
STAGES: tuple[Stage, ...] = (
    *(
        stage
        for role, entry, heads in (
            ("q", "query", "num_heads"),
            ("k", "key", "num_kv_heads"),
            ("v", "value", "num_kv_heads"),
        )
        for stage in _projected(role, entry, heads)
    ),
    Stage("scales of the keys", multiplied("key"), ("key_scale",), "key_scale"),
    Stage("scales of the values", multiplied("value"), ("value_scale",), "value_scale"),
    Stage("expansion of the latents", expanded, ("w_uk", "w_uv"), "w_uk"),
    normed("query"),
    normed("key"),
    rotated("query"),
    rotated("key"),
    _turned("query"),
    _turned("key"),
    normed("query", "late_epsilon"),
    normed("key", "late_epsilon"),
    Stage("learned key and value", _learned, ("key", "value", "bias_k", "bias_v"), "bias_k"),
    Stage("key and value of zeros", _zero_key, ("key", "value"), "zero_key"),
    _repeated("key"),
    _repeated("value"),
    Stage("product", lambda s: {"scores": s["query"] @ s["key"].mT}, ("query", "key")),
    Stage("choice of the scale", _default_scale, ("given_scale",)),
    Stage("scale", lambda s: {"scores": s["scores"] * s["scale"]}, ("scores", "scale")),
    Stage(
        "softcap",
        lambda s: {"scores": s["softcap"] * torch.tanh(s["scores"] / s["softcap"])},
        ("scores", "softcap"),
        "softcap",
    ),
    Stage(
        "ALiBi bias",
        lambda s: _on_given(s, lambda x: x - s["alibi_slopes"][..., None, None] * _ahead(s).abs()),
        ("scores", "alibi_slopes", "query_places", "key_places"),
        "alibi_slopes",
    ),
    Stage("relative bias", _biased, ("scores", "relative_bias", "query_places", "key_places"), "relative_bias"),
    Stage("bias by bucket", bucketed, ("scores", "bucketed_bias", "query_places", "key_places"), "bucketed_bias"),
    Stage("attention mask", _masked, ("scores", "attn_mask", "hidden"), "attn_mask"),
    Stage(
        "padding mask",
        lambda s: _hidden(s, s["key_padding_mask"][:, None, None, :]),
        ("scores", "key_padding_mask", "hidden"),
        "key_padding_mask",
    ),
    Stage("valid lengths", lambda s: _hidden(s, s["valid"]), ("scores", "valid", "hidden"), "valid"),
    Stage(
        "causal triangle",
        lambda s: _hidden(s, _ahead(s) <= 0),
        ("scores", "query_places", "key_places", "hidden"),
        "causal",
    ),
    Stage(
        "window",
        lambda s: s if (s["window_left"], s["window_right"]) == (None, None) else _windowed(s),
        ("scores", "window_left", "window_right", "query_places", "key_places", "hidden"),
    ),
    Stage("documents", _of_documents, ("scores", "query_documents", "key_documents", "hidden"), "query_documents"),
    Stage("sink", _sunk, ("scores", "sinks"), "sinks"),
    Stage("softmax", _softmax, SCORES),
    Stage("weighted sum", _mixed, ("scores", "value")),
    Stage(
        "head gates",
        lambda s: {"heads": s["heads"] * s["head_gates"][..., None, None]},
        ("heads", "head_gates"),
        "head_gates",
    ),
    Stage(
        "gates of the output",
        lambda s: {"heads": s["heads"] * s["gate_logits"].sigmoid()},
        ("heads", "gate_logits"),
        "gate_logits",
    ),
    Stage(
        "merge of the heads",
        lambda s: {"output": s["heads"].transpose(1, 2).flatten(2) if "w_q" in s else s["heads"]},
        ("heads",),
    ),
    Stage("output projection", _output, ("output", "w_o", "b_o"), "w_o"),
    Stage("answer", lambda s: {}, ("output", "weights", "log_sum_exp")),
)
"""In the order of the specification."""
STAGE: Mapping[str, Stage] = {stage.name: stage for stage in STAGES}
"""The same by their names."""


def run(stages: Sequence[Stage], state: State) -> Iterator[State]:
    """What each stage starts from, and what the last one leaves."""
    for stage in stages:
        yield state
        if stage.active(state):
            state = state | stage.change(state)
    yield state
