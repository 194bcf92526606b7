"""Functions that merge states, as FlashInfer, SGLang and vLLM ship them: attention over splits that they merge.

The states, outputs and log-sum-exps over some of the keys, are made here, in float64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import e, log
from typing import Any, TypeAlias

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional

torch = optional("torch")

State: TypeAlias = tuple[Any, Any]
"""Output (tokens, H, d_v) and log-sum-exp (tokens, H), of the kind and dtype of the query and in float32."""
Merge: TypeAlias = Callable[[Callable[..., Any], list[State]], State]
MADE_HERE = ("attn_mask", "is_causal", "scale", "split_lengths")
"""Options that make other states, and are none of the function's."""
LACKS = frozenset({Feature.GROUPED, Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.GRADIENTS, Feature.CONTAINMENT})
PRECISE = {"softmax-precision": "float32"}


def by_pairs(function: Callable[..., Any], states: list[State]) -> State:
    """One state after another, two at a time."""
    return reduce(lambda first, second: tuple(function(*first, *second)), states)


def all_at_once(function: Callable[..., Any], states: list[State]) -> State:
    """Outputs (tokens, splits, H, d_v) and log-sum-exps (tokens, splits, H)."""
    outputs, logs = zip(*states, strict=True)
    merged, log_sum_exp = function(_stacked(outputs), _stacked(logs))
    return merged, log_sum_exp


def into_an_output(function: Callable[..., Any], states: list[State]) -> State:
    """Two at a time, with log-sum-exps (H, tokens), into arrays that are given."""
    return reduce(partial(_merged_into, function), states)


def _merged_into(function: Callable[..., Any], first: State, second: State) -> State:
    output, logs = first[0] * 0, _contiguous(first[1].swapaxes(0, 1)) * 0
    given = (first[0], _contiguous(first[1].swapaxes(0, 1)), second[0], _contiguous(second[1].swapaxes(0, 1)))
    function(output, *given, output_lse=logs)
    return output, logs.swapaxes(0, 1)


@dataclass(frozen=True)
class MergedCall:
    """Attention over the keys in splits, merged by the function; a `Call`.

    Attributes:
        merge: how the function is given the states.
        base: of the log-sum-exps that it takes.
    """

    merge: Merge
    base: float

    def __call__(self, shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
        """The merged output (B, H, Lq, d_v) and log-sum-exp (B, H, Lq)."""
        if str(query.dtype).endswith("float64"):
            raise TypeError("its log-sum-exps are documented in float32, which is too coarse for float64")
        batch, heads, length, _ = query.shape
        scores, rows = _scores(query, key, options), _wide(value)
        lengths = options.get("split_lengths")
        keys = key.shape[2]
        each = [keys] if lengths is None else [int(number) for number in lengths]
        each = each if len(each) > 1 else [*each, 0]  # one alone would never reach it; bounds count no other split
        ends = np.cumsum(each)[:-1]
        parts = zip(np.split(scores, ends, -1), np.split(rows, ends, -2), strict=True)
        output, logs = self.merge(shipped.function, [self._state(query, *part) for part in parts])
        outputs = output.reshape(batch, length, heads, value.shape[3]).swapaxes(1, 2)
        return outputs, logs.reshape(batch, length, heads).swapaxes(1, 2)

    def _state(self, query: Any, scores: Any, value: Any) -> State:
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        exponentials = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        whole = exponentials.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            logs = (np.log(whole) + top)[..., 0] / log(self.base)
        output = exponentials @ value / np.where(whole == 0.0, 1.0, whole)
        return _like(query, _tokens(output)), _like(query, _tokens(logs[..., None])[..., 0], "float32")


def natural(merge: Merge, function: Callable[..., Any]) -> bool:
    """Whether the larger of two log-sum-exps, 0 and 1, gets e times the weight of the other, and not twice as much."""
    for dtype in ("float32", "float16"):
        states = [(np.full((1, 1, 8), float(n), dtype), np.full((1, 1), float(n), np.float32)) for n in (0, 1)]
        given: list[Any] = [tuple(map(torch.from_numpy, state)) for state in states] if torch else states
        share = safe_call(partial(_first_number, merge, function, given)).value
        if share is not None:
            return bool(abs(share - e / (1.0 + e)) < abs(share - 2.0 / 3.0))
    return False


def _first_number(merge: Merge, function: Callable[..., Any], states: list[State]) -> float:
    return float(merge(function, states)[0].reshape(-1)[0])


def _scores(query: Any, key: Any, options: dict[str, Any]) -> Any:
    """(B, H, Lq, Lk) in float64, minus infinity for what is masked."""
    scale, mask = options.get("scale"), options.get("attn_mask")
    scores = _wide(query) @ _wide(key).swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if options.get("is_causal"):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0.0, scores, -np.inf)
    return scores if mask is None else np.where(_wide(mask) != 0.0, scores, -np.inf)


def _wide(x: Any) -> Any:
    return np.asarray(x.detach().double().cpu() if torch and isinstance(x, torch.Tensor) else x, np.float64)


def _tokens(x: Any) -> Any:
    """(B, H, Lq, d) -> (B * Lq, H, d)."""
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch * length, heads, width)


def _like(query: Any, x: Any, dtype: str = "") -> Any:
    """The numbers as the query is: an array or a tensor, in its dtype if no other is given."""
    if not (torch and isinstance(query, torch.Tensor)):
        return np.ascontiguousarray(x.astype(dtype or query.dtype))
    return torch.from_numpy(np.ascontiguousarray(x)).to(query.device, getattr(torch, dtype) if dtype else query.dtype)


def _stacked(arrays: Sequence[Any]) -> Any:
    return torch.stack(arrays, 1) if torch and isinstance(arrays[0], torch.Tensor) else np.stack(arrays, 1)


def _contiguous(x: Any) -> Any:
    return x.contiguous() if torch and isinstance(x, torch.Tensor) else np.ascontiguousarray(x)


def _interfaces(name: str, named: str, merge: Merge, exact: bool = False) -> tuple[Interface, Interface]:
    """Of functions with these names: those that merge by powers of e, and the others, which do by powers of 2."""
    names = frozenset(named.split())
    options = dict.fromkeys(MADE_HERE, min(names))
    others = Interface(
        name, names, MergedCall(merge, 2.0), options, {**PRECISE, "log-sum-exp-base": "2"}, lacks=LACKS, exact=exact
    )
    suits = partial(natural, merge)
    return replace(others, call=MergedCall(merge, e), settings=PRECISE, suits=suits), others


MERGES = (
    *_interfaces("flashinfer.merge_state", "v_a s_a v_b s_b", by_pairs),
    *_interfaces("flashinfer.merge_states", "v s", all_at_once, exact=True),
    *_interfaces(
        "vLLM's merge_attn_states",
        "output prefix_output prefix_lse suffix_output suffix_lse output_lse",
        into_an_output,
    ),
)
"""Which base it is is seen by a call, because functions with the same names exist in both."""
