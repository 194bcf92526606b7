"""Changes: what mistakes make of one of the numbers that a stage reads, and of a stage as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.documents import by_the_longest
from attention_conformance.tests.harness.explain.stages.head_numbers import of_other_heads
from attention_conformance.tests.harness.explain.stages.staged import State

Change: TypeAlias = Callable[[State], Any]
Named: TypeAlias = tuple[str, str, Change]
"""What is wrong, how it is repaired, and the new value of the entry; only gradients change if it says "gradient"."""
OfTensor: TypeAlias = Callable[[Tensor], Tensor]

ROWS, SCORES = ("sample", "head", "token", "component"), ("sample", "head", "query", "key")
FLOATS = {
    **dict.fromkeys(("query", "key", "value", "heads", "output", "gate_logits"), ROWS),
    **dict.fromkeys(("scores", "weights", "attn_mask", "valid"), SCORES),
    **dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), ("row", "column")),
    **dict.fromkeys(("sinks", "alibi_slopes", "head_gates"), ("head",)),
    **dict.fromkeys(("query_norm", "key_norm"), ("component",)),
    **dict.fromkeys(("rotary_cos", "rotary_sin"), ("position", "pair")),
    "log_sum_exp": SCORES[:3],
    "relative_bias": ("head", "distance"),
    "bucketed_bias": ("bucket", "head"),
    **dict.fromkeys(("key_scale", "value_scale"), ("sample", "head", "token", "component")),
    **dict.fromkeys(("w_uk", "w_uv"), ("head", "component", "latent")),
    "key_padding_mask": ("sample", "key"),
    **dict.fromkeys(("bias_k", "bias_v"), ("component",)),
}
"""The axes of tensors, the last ones of them where there are fewer."""
NAMES = {"attn_mask": "mask", "key_padding_mask": "padding mask", "valid": "valid lengths", "alibi_slopes": "slopes"}
NAMES |= {
    "relative_bias": "table of biases",
    "bucketed_bias": "table of biases by bucket",
    "key_scale": "scale of the keys",
    "value_scale": "scale of the values",
    "w_uk": "matrix of the keys",
    "w_uv": "matrix of the values",
    "head_gates": "gates",
    "gate_logits": "logits of gates",
    "query_norm": "gain of queries",
    "key_norm": "gain of keys",
    "norm_epsilon": "epsilon",
    "rotary_cos": "table of cosines",
    "rotary_sin": "table of sines",
    "log_sum_exp": "log-sum-exp",
    "given_scale": "given scale",
}
NAMES |= {"query_places": "positions of queries", "key_places": "positions of keys", "rotary_base": "rotary base"}
NAMES |= {"window_left": "limit to the left", "window_right": "limit to the right", "hidden": "score of hidden keys"}
NAMES |= {"query_documents": "documents of queries", "key_documents": "documents of keys"}
NAMES |= {f"w_{role}": f"weight matrix of {role}" for role in "qkvo"} | {
    f"b_{role}": f"bias of {role}" for role in "qkvo"
}
REPAIRS = {"hidden": "Put minus infinity in place of hidden scores."}
BY_WORD = {
    "gradient": "Look at how the backward pass makes the gradient of the {}.",
    "counted": "Split the heads of the {} into num_kv_heads times the heads of a group, in this order.",
}
"""How a change is repaired, by a word of what is wrong."""
NEXT = ("the causal triangle shows each query the next key, too", "Hide from the first later key on: triu(1).")
OWN = ("the causal triangle hides each query's own key", "Hide from the first later key on: triu(1).")
WORDED = {
    ("causal triangle", "positions of queries one too large"): NEXT,
    ("causal triangle", "positions of keys one too small"): NEXT,
    ("causal triangle", "positions of queries one too small"): OWN,
    ("causal triangle", "positions of keys one too large"): OWN,
}
"""Better words for a change, and for its repair, than those of its entry; by stage."""
SCALARS = ("scale", "given_scale", "softcap", "norm_epsilon", "rotary_base", "window_left", "window_right")
OPTIONAL = ("window_left", "window_right", "given_scale", *(f"b_{role}" for role in "qkvo"))
PLACES = ("query_places", "key_places", "query_documents", "key_documents")
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("query", "key", "value"),
    ("w_q", "w_k", "w_v"),
    ("b_q", "b_k", "b_v"),
    ("window_left", "window_right"),
)
FAMILIES += (
    ("query_places", "key_places"),
    ("query_documents", "key_documents"),
    ("bias_k", "bias_v"),
    ("query_norm", "key_norm"),
    ("rotary_cos", "rotary_sin"),
    ("key_scale", "value_scale"),
)
"""Entries that may be taken for one another."""
CHANGING = {
    "scores": ("scale", "softmax", "weighted sum"),
    "query": ("projection of the query", "split of the query into heads", "product"),
    "key": ("projection of the key", "split of the key into heads", "repetition of the key heads", "product"),
    "value": (
        "projection of the value",
        "split of the value into heads",
        "repetition of the value heads",
        "weighted sum",
    ),
    "heads": ("head gates", "merge of the heads"),
}
"""Where entries are changed that many stages read."""


def of_entry(stage: str, entry: str) -> Iterator[Named]:
    """Every change of an entry before a stage."""
    if entry in CHANGING and stage not in CHANGING[entry]:
        return
    noun = NAMES.get(entry, entry)
    are = "they are" if noun.partition(" ")[0].removesuffix("bias").endswith("s") else "it is"
    repair = REPAIRS.get(entry, f"Take the {noun} as {are}.")
    where = f" before the {stage}" if entry in CHANGING else f" in the {stage}" if entry in (*PLACES, "hidden") else ""
    for words, change in _changes(entry):
        own = next((text.format(noun) for word, text in BY_WORD.items() if word in words), repair)
        plural = words.replace("with its gradient", "with their gradient") if are == "they are" else words
        yield *WORDED.get((stage, f"{noun} {words}"), (f"{noun} {plural}{where}", own)), change


def _changes(entry: str) -> Iterator[tuple[str, Change]]:
    for words, of in _of_values(entry):
        yield words, partial(_applied, entry, of)
    if entry in OPTIONAL:
        yield "ignored", lambda state: None
    yield from _of_others(entry)


def _applied(entry: str, of: Callable[[Any], Any], state: State) -> Any:
    return of(state[entry])


def _of_values(entry: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if entry in FLOATS:
        yield from ELEMENTS.items()
        yield from GRADIENTS.items()
        axes = FLOATS[entry]
        for back, axis in enumerate(reversed(axes), 1):
            for words, along in ALONG.items():
                yield words.format(axis), partial(along, axis=-back)
        numbers = dict(enumerate(reversed(axes), 1))
        for one, two in combinations(numbers, 2):
            words = f"with {numbers[two]}s and {numbers[one]}s"
            yield f"{words} exchanged", partial(_exchanged, one=-one, two=-two)
            if two - one == 1:
                yield f"{words} read in another order", partial(reread, one=-one, two=-two)
                yield f"{words} laid out in another order", partial(relaid, one=-one, two=-two)
    elif entry in PLACES:
        yield from POSITIONS.items()
    elif entry == "hidden":
        for filling in (0.0, -100.0, -1e4, -1e9, -1e30):
            yield f"is finite, such as {filling:g}," if filling else "is 0", partial(_constant, filling)
    elif entry in SCALARS:
        yield from NUMBERS.items()
        if entry == "rotary_base":
            yield "set to 10000", partial(_constant, 10000.0)


ELEMENTS: dict[str, OfTensor] = {
    "negated": lambda x: ~x if x.dtype is torch.bool else -x,
    "doubled": lambda x: x * 2.0,
    "halved": lambda x: x / 2.0,
    "squared": lambda x: x * x,
    "made positive": lambda x: x.abs(),
    "set to zero": lambda x: torch.zeros_like(x),
    "set to one": lambda x: torch.ones_like(x),
    "exponentiated": lambda x: x.exp(),
    "passed through a sigmoid": lambda x: x.sigmoid(),
    "normalised to length 1": lambda x: x / x.norm(dim=-1, keepdim=True),
    "divided by the mean of its sizes": lambda x: x / x.abs().mean(-1, keepdim=True),
    "passed through a softmax": lambda x: x.softmax(-1),
    "divided by its sum": lambda x: x / x.sum(-1, keepdim=True),
    "rounded to bfloat16": lambda x: x.bfloat16().double(),
    "rounded to float16": lambda x: x.half().double(),
    "rounded to float32": lambda x: x.float().double(),
}


def _with_gradient(x: Tensor, of: OfTensor) -> Tensor:
    """The same numbers with another gradient.

    Raises:
        ValueError: it has none.
    """
    if not x.requires_grad:
        raise ValueError("no gradient is recorded")
    same = x.view_as(x)
    same.register_hook(of)
    return same


def _first(x: Tensor, axis: int) -> Tensor:
    return x.narrow(axis, 0, 1).expand_as(x)


def _only(x: Tensor, axis: int, at: int) -> Tensor:
    """Zeros, but at one place of an axis."""
    kept = torch.zeros(x.shape[axis], dtype=torch.bool)
    kept[at] = True
    return x * kept.view(-1, *[1] * (-axis - 1))


def _without(x: Tensor, axis: int, at: int) -> Tensor:
    return x * 1 - _only(x, axis, at) if x.dtype is not torch.bool else x & ~_only(x, axis, at).bool()


GRADIENTS: dict[str, OfTensor] = {
    "with its gradient lost": lambda x: _with_gradient(x, torch.zeros_like),
    "with its gradient doubled": lambda x: _with_gradient(x, lambda g: 2.0 * g),
    "with its gradient halved": lambda x: _with_gradient(x, lambda g: g / 2.0),
    "with its gradient negated": lambda x: _with_gradient(x, lambda g: -g),
    "with its gradient rounded to bfloat16": lambda x: _with_gradient(x, lambda g: g.bfloat16().double()),
}
ALONG: dict[str, Callable[..., Tensor]] = {
    "of the first {} for all": _first,
    "of the last {} for all": lambda x, axis: _first(x.flip(axis), axis),
    "with {}s in reverse order": lambda x, axis: x.flip(axis),
    "moved by one {}": lambda x, axis: x.roll(1, axis),
    "moved back by one {}": lambda x, axis: x.roll(-1, axis),
    "averaged over the {}s": lambda x, axis: x.mean(axis, keepdim=True).expand_as(x),
    "summed over the {}s": lambda x, axis: x.sum(axis, keepdim=True).expand_as(x),
    "without its last {}": lambda x, axis: _without(x, axis, -1),
    "without its first {}": lambda x, axis: _without(x, axis, 0),
    "with the gradient of the first {} alone": lambda x, axis: _with_gradient(x, lambda g: _only(g, axis, 0)),
    "with the gradient of the last {} alone": lambda x, axis: _with_gradient(x, lambda g: _only(g, axis, -1)),
    "with its gradient averaged over the {}s": lambda x, axis: _with_gradient(
        x, lambda g: g.mean(axis, keepdim=True).expand_as(g)
    ),
}


def _exchanged(x: Tensor, one: int, two: int) -> Tensor:
    if x.shape[one] != x.shape[two]:
        raise ValueError("the extents differ")
    return x.transpose(one, two)


def reread(x: Tensor, one: int, two: int) -> Tensor:
    """Memory laid out with two axes exchanged, and read as if they were not."""
    return x.transpose(one, two).reshape(x.shape)


def relaid(x: Tensor, one: int, two: int) -> Tensor:
    """Memory read with two axes exchanged."""
    return x.reshape(x.transpose(one, two).shape).transpose(one, two)


POSITIONS: dict[str, OfTensor] = {
    "one too large": lambda x: x + 1,
    "one too small": lambda x: x - 1,
    "negated": lambda x: -x,
    "counted from 0": lambda x: torch.arange(x.shape[-1]).expand_as(x),
    "counted from 0 in each sequence": lambda x: x - x[:, :1],
    "set to 0": torch.zeros_like,
    "in reverse order": lambda x: x.flip(-1),
    "of the first sample for all": lambda x: x[:1].expand_as(x),
    "rounded to bfloat16": lambda x: x.bfloat16().double(),
    "rounded to float16": lambda x: x.half().double(),
    "doubled": lambda x: 2 * x,
}
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "negated": lambda x: -x,
    "made positive": abs,
    "set to one": lambda x: 1.0,
    "doubled": lambda x: 2 * x,
    "halved": lambda x: x / 2,
    "squared": lambda x: x * x,
    "replaced by its root": lambda x: x**0.5,
    "replaced by its inverse": lambda x: 1.0 / x,
    "one too large": lambda x: x + 1,
    "one too small": lambda x: x - 1,
    "ignored where it is 0": lambda x: x or None,
}


def _of_others(entry: str) -> Iterator[tuple[str, Change]]:
    """Changes that depend on other entries."""
    for family in FAMILIES:
        for other in family if entry in family else ():
            if other != entry:
                yield f"taken from the {NAMES.get(other, other)}", partial(_other, other)
    if entry == "scale":
        for words, extent in EXTENTS.items():
            yield f"{words}", partial(_by_default, extent)
        yield "taken by default where one is given", lambda s: s["key"].shape[-1] ** -0.5
    if entry == "query_places":
        yield "aligned by the longest sequences", by_the_longest
    if entry in ("attn_mask", "alibi_slopes", "relative_bias", "sinks"):
        yield "multiplied by the scale", lambda s: _number(s[entry]) * s["scale"]
        yield "divided by the scale", lambda s: _number(s[entry]) / s["scale"]
    if entry in ("query", "key", "value", "scores", "attn_mask"):
        yield "with its gradient divided by the scale", lambda s: _with_gradient(s[entry], lambda g: g / s["scale"])
        yield "with its gradient multiplied by the scale", lambda s: _with_gradient(s[entry], lambda g: g * s["scale"])
    yield from of_other_heads(entry)
    if entry in ("heads", "output"):
        for other in ("query", "value"):
            yield f"with the {other} added", partial(_added, entry, other)


def _constant(number: float, value: object) -> float:
    return number


def _added(entry: str, other: str, state: State) -> Tensor:
    made: Tensor = state[entry] + _alike(state[other], state[entry])
    return made


def _other(other: str, state: State) -> Any:
    return state[other]


def _alike(x: Tensor, like: Tensor) -> Tensor:
    if x.shape[:-1] != like.shape[:-1]:
        raise ValueError("the shapes differ")
    return torch.nn.functional.pad(x, (0, like.shape[-1] - x.shape[-1]))


def _number(x: Tensor) -> Tensor:
    """A mask of numbers.

    Raises:
        ValueError: it is boolean.
    """
    if x.dtype is torch.bool:
        raise ValueError("a boolean mask")
    return x


def _by_default(extent: Callable[[State], float], state: State) -> float:
    """Another default scale; a given one remains.

    Raises:
        ValueError: a scale is given.
    """
    if state["given_scale"] is not None:
        raise ValueError("a scale is given")
    return extent(state)


EXTENTS: dict[str, Callable[[State], float]] = {
    "of 1 by default": lambda s: 1.0,
    "is the root of d_k": lambda s: s["key"].shape[-1] ** 0.5,
    "divides by d_k": lambda s: 1.0 / s["key"].shape[-1],
    "divides by the root of the width of all heads": lambda s: (s["num_heads"] * s["key"].shape[-1]) ** -0.5,
    "divides by the root of the width of a value": lambda s: s["value"].shape[-1] ** -0.5,
    "divides by the root of the number of keys": lambda s: s["keys"] ** -0.5,
    "divides by the root of the number of queries": lambda s: s["query"].shape[-2] ** -0.5,
    "divides by the root of the number of heads": lambda s: s["num_heads"] ** -0.5,
    "is the fourth root of 1/d_k": lambda s: s["key"].shape[-1] ** -0.25,
}
