"""The options of an op: a problem as the keyword arguments of a call; only what the problem has appears."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from attention_conformance.implementations.api.global_state import numpy_seeded, seed_torch
from attention_conformance.spec.case_options import used_options
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import NOTHING
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Array, Problem

torch = optional("torch")
INPUTS = ("query", "key", "value")
T = TypeVar("T")
BATCHED = (
    "key_padding_mask",
    "valid_lens",
    "query_segments",
    "key_segments",
    "query_positions",
    "key_positions",
    "query_starts",
    "query_lens",
    "gate_logits",
)
"""Options whose first axis is the batch."""
OF_AXES = {"rotary_cos": 3, "rotary_sin": 3, "alibi_slopes": 2}
"""Options whose first axis is the batch if there are so many."""
LENGTHS = {"query_lengths": "cu_seqlens_q", "key_lengths": "cu_seqlens_k"}


def inputs_of(given: Mapping[str, T]) -> tuple[T, T, T]:
    """Query, key and value; a shared input is one and the same array."""
    query = given["query"]
    key = given.get("key", query)
    return query, key, given.get("value", key)


def op_options(
    problem: Problem, given: Mapping[str, Any], polarity: Polarity, implied: Sequence[str] = ()
) -> dict[str, Any]:
    """attn_mask, key_padding_mask, valid_lens, is_causal=True, scale, and what `extra_options` names.

    Args:
        problem: the problem.
        given: its arrays or tensors by name.
        polarity: what True means in the boolean masks of the op.
        implied: options that are left out, because the op always does what they state.
    """
    options: dict[str, Any] = {}
    for name in ("attn_mask", "key_padding_mask"):
        if name in given:
            flipped = problem.arrays()[name].dtype.kind == "b" and polarity is Polarity.MASKED_OUT
            options[name] = ~given[name] if flipped else given[name]
    if "valid_lens" in given:
        options["valid_lens"] = given["valid_lens"]
    if problem.causal:
        options["is_causal"] = True
    if problem.scale is not None:
        options["scale"] = problem.scale
    return {name: value for name, value in (options | extra_options(problem, given)).items() if name not in implied}


def extra_options(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a problem beyond the core, as keyword arguments.

    Args:
        problem: the problem.
        given: its arrays or tensors by name.

    Returns:
        Arrays under their names in `Problem.extras`; `cu_seqlens_q` and `cu_seqlens_k`, (documents + 1,) int32;
        `window_size` (left, right), -1 for no limit; `softcap`, `rotary_base`, `rotary_dim`, `query_start`;
        `enable_gqa` True where there are fewer key heads; `add_zero_attn` True; `dropout_p`; `training` False in
        evaluation mode.
    """
    options: dict[str, Any] = {"enable_gqa": True} if problem.num_kv_heads != problem.num_heads else {}
    if problem.extension == NOTHING:
        return options
    arrays = {**given, **{LENGTHS[name]: _cumulative(problem, given, name) for name in LENGTHS if name in given}}
    for option in used_options(problem.extension):
        value = getattr(problem.extension, option.setting)
        options |= {name: arrays.get(name, value) for name in option.keywords}
    return options


def _cumulative(problem: Problem, given: Mapping[str, Any], name: str) -> Any:
    """[0, n_1, n_1 + n_2, ...], of the kind of the given lengths."""
    ends: Array = np.concatenate([[0], np.cumsum(problem.extras[name])]).astype(np.int32)
    return torch.from_numpy(ends).to(given[name].device) if torch and isinstance(given[name], torch.Tensor) else ends


@contextmanager
def seeded(problem: Problem) -> Iterator[None]:
    """Seeds the generators of torch and NumPy with the problem's draw, and restores them; for dropout only.

    With a negative draw they are not seeded: the caller restores them.
    """
    extension = problem.extension
    if not extension.dropout or extension.dropout_seed < 0:
        yield
        return
    with _torch_seeded(extension.dropout_seed) if torch else nullcontext(), numpy_seeded(extension.dropout_seed):
        yield


@contextmanager
def _torch_seeded(seed: int) -> Iterator[None]:
    # Where no accelerator is in use, a look at its generators takes longer than the call.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        seed_torch(seed)
        yield
