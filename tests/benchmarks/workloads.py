"""Attention problems of well-known models, by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attention_conformance.implementations.adapters.tensors import TORCH_DTYPES, to_array
from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Sharing, Sizes
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

FORWARD, BOTH = "forward", "forward+backward"
PASSES = (FORWARD, BOTH)
DTYPES = ("float32", "bfloat16")
BASELINES: Mapping[Scope, str] = {Scope.OP: "torch.sdpa", Scope.MODULE: "torch.mha"}
CUBES = 15.0**0.5
"""The standard deviation of cubes of standard normal numbers."""
DRAWN = ("query", "key", "value", "cotangent")
"""The arrays of a problem that differ from call to call."""
INPUT_STD = 1.2
"""The standard deviation of inputs; that of scores is its square: few keys dominate a row, so a lost key is visible."""
SMALL = 0.005
"""The factor of all weights but one large weight in each column."""


@dataclass(frozen=True)
class Workload:
    """An attention problem that users have.

    Attributes:
        name: common to the op and the module of one model.
        case: sizes, masks, and at the module level widths and parts.
        baseline: the implementation that others are compared with.
        passes: "forward", "forward+backward" or both.
        dtypes: those that are timed.
    """

    name: str
    case: Case
    baseline: str
    passes: tuple[str, ...] = PASSES
    dtypes: tuple[str, ...] = DTYPES

    @property
    def level(self) -> str:
        """Either "op" or "module"."""
        return str(self.case.scope)

    @property
    def sizes(self) -> dict[str, int]:
        """Its extents by the names of the shapes; the width of the query at the module level."""
        s = self.case.sizes
        named = {"B": s.batch, "H": s.num_heads, "Hk": s.kv_heads, "Lq": s.query_length, "Lk": s.key_length}
        widths = {"d_k": s.d_k, "d_v": s.d_v}
        return named | widths | ({} if self.case.module is None else {"width": self.case.module.query_dim})


class Timed(NamedTuple):
    """A workload with its passes and a dtype."""

    workload: Workload
    passes: str
    dtype: str

    @property
    def name(self) -> str:
        """Such as "gpt2-causal-1024.op.forward.float32"."""
        return f"{self.workload.name}.{self.workload.level}.{self.passes}.{self.dtype}"


def _both(name: str, sizes: Sizes, context: int = 0, baseline: str = "", **changes: object) -> Iterator[Workload]:
    """The op, and a module of the width of all heads; `context` is the width of keys and values."""
    case = replace(Case(sizes), **changes)  # type: ignore[arg-type]  # the names of its fields
    yield Workload(name, case, BASELINES[Scope.OP])
    width = sizes.num_heads * sizes.d_k
    form = ModuleForm(
        sharing=Sharing.KEY_VALUE if context else Sharing.SELF,
        query_dim=width,
        key_dim=context or width,
        value_dim=context or width,
        out_dim=width,
        bias=True,
        output_projection=True,
        output_bias=True,
    )
    yield Workload(name, replace(case, module=form), baseline or BASELINES[Scope.MODULE])


def _decode(length: int) -> Workload:
    """One new query against a cache of keys and values: an op, because a module would project all of them again."""
    return Workload(f"decode-{length}", Case(Sizes(1, 12, 1, length, 64, 64)), BASELINES[Scope.OP], (FORWARD,))


WORKLOADS: tuple[Workload, ...] = (
    *_both("tiny", Sizes(64, 8, 32, 32, 8, 8)),
    *_both("vit-b16", Sizes(4, 12, 197, 197, 64, 64)),
    *_both("bert-128", Sizes(8, 12, 128, 128, 64, 64), padding=Padding.RIGHT),
    *_both("bert-512", Sizes(4, 12, 512, 512, 64, 64), padding=Padding.RIGHT),
    *_both("gpt2-causal-1024", Sizes(1, 12, 1024, 1024, 64, 64), causal=True),
    *_both("llama-gqa-causal-2048", Sizes(1, 32, 2048, 2048, 128, 128, 8), baseline="compose.module.sdpa", causal=True),
    *(_decode(length) for length in (128, 1024, 4096, 16384)),
    *_both("cross-77", Sizes(2, 8, 1024, 77, 40, 40), context=768, baseline="torch.mha.kdim-vdim"),
    *_both("long-8192", Sizes(1, 4, 8192, 8192, 64, 64)),
)


def timed(workloads: tuple[Workload, ...] = WORKLOADS) -> tuple[Timed, ...]:
    """All combinations of these workloads with their passes and dtypes."""
    return tuple(Timed(w, passes, dtype) for w in workloads for passes in w.passes for dtype in w.dtypes)


_CHOSEN = (
    "tiny.op.forward.float32",
    "vit-b16.op.forward.float32",
    "bert-128.op.forward+backward.float32",
    "gpt2-causal-1024.op.forward.float32",
    "gpt2-causal-1024.op.forward+backward.bfloat16",
    "decode-4096.op.forward.float32",
    "cross-77.op.forward.bfloat16",
    "llama-gqa-causal-2048.op.forward.bfloat16",
    "tiny.module.forward.float32",
    "vit-b16.module.forward.float32",
    "bert-128.module.forward.float32",
    "bert-128.module.forward+backward.float32",
    "bert-512.module.forward.bfloat16",
    "gpt2-causal-1024.module.forward.float32",
    "gpt2-causal-1024.module.forward+backward.bfloat16",
    "cross-77.module.forward.float32",
)
REPRESENTATIVE: tuple[Timed, ...] = tuple(each for each in timed() if each.name in _CHOSEN)
"""A few minutes' worth: each model, each level, both passes and both dtypes occur."""
IMPLEMENTATIONS = (
    "torch.sdpa",
    "torch.sdpa.math",
    "inhouse.tiled",
    "inhouse.numpy",
    "compose.eager",
    "compose.numpy",
    "torch.mha",
    "torch.mha.fast-path",
    "torch.mha.kdim-vdim",
    "inhouse.fused",
    "source.d",
    "compose.module.eager",
    "compose.module.sdpa",
)
"""The default implementations."""


def suited(workload: Workload, claims: Claims, passes: str, dtype: str) -> Case | Unsupported:
    """The workload's case in a form that the claims support, or the reason why there is none.

    Sizes and options stay as they are; only the form of a padding and the sharing of inputs may differ.
    """
    case = workload.case
    if claims.scope is not case.scope:
        article = {Scope.OP: "an op", Scope.MODULE: "a module"}
        return Unsupported(f"is {article[claims.scope]}, and the workload needs {article[case.scope]}")
    if dtype not in claims.dtypes:
        return Unsupported(f"does not claim {dtype}")
    if missing := [feature for feature, needed in _needs(case, passes).items() if needed and feature not in claims]:
        return Unsupported(f"does not claim {missing[0]}")
    fitted = [_whole(form, claims) for form in _forms_of_padding(case)]
    return next((each for each in fitted if isinstance(each, Case)), fitted[0])


def _needs(case: Case, passes: str) -> dict[Feature, bool]:
    form, s = case.module, case.sizes
    return {
        Feature.HEADS: s.num_heads > 1,
        Feature.CROSS: s.query_length != s.key_length,
        Feature.GRADIENTS: passes == BOTH,
        Feature.BIAS: form is not None and form.bias,
        Feature.OUTPUT_PROJECTION: form is not None and form.output_projection,
        Feature.OUTPUT_BIAS: form is not None and form.output_bias,
        Feature.INPUT_WIDTHS: form is not None and form.query_dim != form.key_dim,
    }


def _forms_of_padding(case: Case) -> Iterator[Case]:
    """The case, with its padding as a mask of keys, as lengths, and as a boolean mask."""
    yield case
    if case.padding is Padding.RIGHT:
        yield replace(case, padding=Padding.LENGTHS)
        yield replace(case, padding=Padding.NONE, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS)


def _whole(case: Case, claims: Claims) -> Case | Unsupported:
    fitted = fit(case, claims)
    if isinstance(fitted, Unsupported):
        return fitted
    if replace(fitted, module=None) != replace(case, module=None):
        return Unsupported(f"supports {fitted.sizes}, and not {case.sizes}")
    if case.module is None:
        return case
    # For a module that needs a context, self-attention becomes cross-attention to one of the same length.
    only_context = Feature.CROSS in claims and Feature.KEY_VALUE not in claims
    form = replace(case.module, sharing=Sharing.KEY_VALUE if only_context else case.module.sharing)
    nearest = claims.fit(replace(case, module=form))
    if isinstance(nearest, Case) and nearest != replace(case, module=form):
        return Unsupported(f"does not support width {form.query_dim} of inputs with {form.out_dim} of the output")
    return nearest


def problem_for(
    workload: Workload, dtype: str, passes: str = FORWARD, seed: int = 0, case: Case | None = None
) -> Problem:
    """The workload's problem in memory of its own, with a cotangent where the passes include the backward one.

    Inputs and cotangent are `heavy`, and weights such that projections are, too. The parameters depend on the case
    alone: a seed gives other inputs to one model. The case is as `suited` gives it for an implementation, or the
    workload's own.
    """
    case = case or workload.case
    arrays = {name: heavy(shape, dtype, (seed, n)) for n, (name, shape) in enumerate(shapes(case).items())}
    masks = _masks(case)
    problem = Problem(
        scope=case.scope,
        query=arrays["query"],
        key=arrays["key"],
        value=arrays["value"],
        num_heads=case.sizes.num_heads,
        parameters={} if case.module is None else _parameters(case, dtype),
        attn_mask=masks.get("attn_mask"),
        key_padding_mask=masks.get("key_padding_mask"),
        valid_lens=masks.get("valid_lens"),
        causal=case.causal,
        scale=case.scale,
        cotangent=arrays["cotangent"] if passes == BOTH else None,
        sharing=Sharing.NONE if case.module is None else case.module.sharing,
    ).with_arrays({})
    floats = (name for name, array in problem.arrays().items() if array.dtype.kind not in "bi")
    return replace(problem, needs=tuple(name for name in floats if name != "cotangent") if passes == BOTH else ())


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shapes of query, key, value and cotangent."""
    s, form = case.sizes, case.module
    if form is None:
        keys, queries = (s.batch, s.kv_heads, s.key_length), (s.batch, s.num_heads, s.query_length)
        inputs = {"query": (*queries, s.d_k), "key": (*keys, s.d_k), "value": (*keys, s.d_v)}
        return {**inputs, "cotangent": (*queries, s.d_v)}
    lengths = {"query": s.query_length, "key": s.key_length, "value": s.key_length, "cotangent": s.query_length}
    widths = {"query": form.query_dim, "key": form.key_dim, "value": form.value_dim, "cotangent": form.out_dim}
    return {name: (s.batch, lengths[name], widths[name]) for name in lengths}


def heavy(shape: tuple[int, ...], dtype: str, seed: tuple[int, ...]) -> Array:
    """Cubes of normal numbers with the standard deviation `INPUT_STD`: few are large, as in activations of models.

    Then few products dominate a score, instead of dozens that nearly cancel, and its bound is a third as wide.
    """
    return _as(_normal(shape, seed) ** 3 * np.float32(INPUT_STD / CUBES), dtype)


def _normal(shape: tuple[int, ...], seed: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _as(numbers: NDArray[np.float32], dtype: str) -> Array:
    """Rounded by torch: NumPy rounds slowly to bfloat16."""
    return to_array(torch.from_numpy(numbers).to(TORCH_DTYPES[dtype]))


def _parameters(case: Case, dtype: str) -> dict[str, Array]:
    form, s = case.module, case.sizes
    assert form is not None
    queried, keyed, valued, mixed = s.num_heads * s.d_k, s.kv_heads * s.d_k, s.kv_heads * s.d_v, s.num_heads * s.d_v
    inputs = {"w_q": (form.query_dim, queried), "w_k": (form.key_dim, keyed), "w_v": (form.value_dim, valued)}
    biases = {"b_q": (queried,), "b_k": (keyed,), "b_v": (valued,), "b_o": (form.out_dim,)}
    extents: dict[str, tuple[int, ...]] = {**inputs, "w_o": (mixed, form.out_dim), **biases}
    drawn = enumerate(extents.items(), start=len(DRAWN))
    return {name: _weights(shape, dtype, (0, number)) for number, (name, shape) in drawn}


def _weights(shape: tuple[int, ...], dtype: str, seed: tuple[int, ...]) -> Array:
    """Weights or biases such that x @ w has the standard deviation of x: small ones, and a 1 or -1 in each column.

    With weights of equal size, a bound that adds the errors of hundreds of terms would allow zeros in a half type.
    """
    inputs = shape[0] if len(shape) == 2 else 1
    drawn = _normal(shape, seed) * np.float32(SMALL * inputs**-0.5)
    if len(shape) == 2:
        random, columns = np.random.default_rng((3, *seed)), np.arange(shape[1])
        drawn[random.permutation(columns) % inputs, columns] = random.choice([-1.0, 1.0], len(columns))
    return _as(drawn, dtype)


def _masks(case: Case) -> dict[str, Array]:
    """The padding: the lengths of samples are between half and all of the longest."""
    s = case.sizes
    lengths = np.linspace(s.key_length, s.key_length / 2, s.batch).astype(np.int64)
    if case.padding is Padding.LENGTHS:
        return {"valid_lens": lengths}
    is_token = np.arange(s.key_length) < lengths[:, None]
    if case.padding is Padding.RIGHT:
        return {"key_padding_mask": is_token}
    return {"attn_mask": is_token[:, None, None]} if case.mask is MaskKind.BOOL else {}
