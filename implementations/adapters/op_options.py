"""The options of an op: a problem as the keyword arguments of a call; only what the problem has appears."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.global_state import seed_torch
from attention_conformance.spec.features import Polarity
from attention_conformance.spec.problem import Array, Problem

INPUTS = ("query", "key", "value")
ARRAYS = ("sinks", "alibi_slopes", "relative_bias", "head_gates", "query_segments", "key_segments")
LENGTHS = {"query_lengths": "cu_seqlens_q", "key_lengths": "cu_seqlens_k"}


def op_options(problem: Problem, given: Mapping[str, Any], polarity: Polarity) -> dict[str, Any]:
    """attn_mask, key_padding_mask, is_causal=True, scale, and what `extra_options` names.

    Args:
        problem: the problem.
        given: its arrays or tensors by name.
        polarity: what True means in the boolean masks of the op.
    """
    options: dict[str, Any] = {}
    for name in ("attn_mask", "key_padding_mask"):
        if name in given:
            flipped = problem.arrays()[name].dtype.kind == "b" and polarity is Polarity.MASKED_OUT
            options[name] = ~given[name] if flipped else given[name]
    if problem.causal:
        options["is_causal"] = True
    if problem.scale is not None:
        options["scale"] = problem.scale
    return options | extra_options(problem, given)


def extra_options(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a problem asks for beyond the core, as keyword arguments; only what is asked for appears.

    Args:
        problem: the problem.
        given: its arrays or tensors by name.

    Returns:
        Arrays under their names in `Problem.extras`; `cu_seqlens_q` and `cu_seqlens_k`, (documents + 1,) int32;
        `window_size` (left, right), -1 for no limit; `softcap`, `rotary_base`, `query_start`; `enable_gqa` True where
        there are fewer key heads; `add_zero_attn` True; `dropout_p`; `training` False in evaluation mode.
    """
    asked = problem.extension
    options: dict[str, Any] = {name: given[name] for name in ARRAYS if name in given}
    options |= {LENGTHS[name]: _cumulative(problem, given, name) for name in LENGTHS if name in given}
    if asked.windowed:
        options["window_size"] = tuple(-1 if side is None else side for side in (asked.window_left, asked.window_right))
    plain = {"softcap": asked.softcap, "rotary_base": asked.rotary_base, "query_start": asked.query_start}
    options |= {name: value for name, value in plain.items() if value is not None}
    flags = {"enable_gqa": problem.num_kv_heads != problem.num_heads, "add_zero_attn": asked.zero_attn}
    options |= {name: True for name, wanted in flags.items() if wanted}
    options |= {"training": False} if asked.evaluation else {}
    return options | ({"dropout_p": asked.dropout} if asked.has_dropout else {})


def _cumulative(problem: Problem, given: Mapping[str, Any], name: str) -> Any:
    """[0, n_1, n_1 + n_2, ...], of the kind of the given lengths."""
    ends: Array = np.concatenate([[0], np.cumsum(problem.extras[name])]).astype(np.int32)
    return to_tensor(ends, str(given[name].device)) if isinstance(given[name], torch.Tensor) else ends


@contextmanager
def seeded(problem: Problem) -> Iterator[None]:
    """The generators of torch and NumPy started at the problem's draw, and put back, where it asks for dropout.

    Not for a draw that is negative: they go on then, and whoever asks puts them back.
    """
    asked = problem.extension
    if not asked.dropout or asked.dropout_seed < 0:
        yield
        return
    # Where no accelerator is in use, asking for its generators takes longer than the call.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    numbers = np.random.get_state()
    with torch.random.fork_rng(devices):
        seed_torch(asked.dropout_seed)
        np.random.seed(asked.dropout_seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)
