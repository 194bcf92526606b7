"""Norms of queries and keys inside a module: where they are, which they are, and what their parameters hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.spec.conventions import Conventions, NormDefault, NormGain, NormKind, NormOrder, NormSpan
from attention_conformance.spec.premises import Premises

WORDS = {"query": {"q", "query", "queries"}, "key": {"k", "key", "keys"}}
NORMS = ("norm", "ln", "rms")
"""What a word in the name of a norm begins or ends with."""
LARGE, SMALL, TINY = 1e3, 1e-9, 1e-15
"""Sizes of rows beside which epsilon is nothing, and which are nothing beside epsilon."""
ALIKE = 0.5
"""Every component of the tokens that a module is called with."""
NEAR = 1e-4
"""As close as two ways of computing come, of which one is in float32."""


@dataclass(frozen=True)
class FoundNorm:
    """A norm of queries and keys.

    Attributes:
        kind: by what it divides.
        gain: what its weight multiplies by, or None: it has no weight.
        epsilon: what it adds, or None: the spacing of the dtype.
        width: over how many components it is taken.
        paths: of the norm of queries and of that of keys.
        has_bias: whether they add one, too.
        order: of norm and rotation.
    """

    kind: NormKind
    gain: NormGain | None
    epsilon: float | None
    width: int
    paths: tuple[str, str]
    has_bias: bool = False
    order: NormOrder = NormOrder.FIRST

    def spanning(self, width: int, heads: int) -> NormSpan:
        """Over what it is taken in a module of this width with so many heads."""
        if self.gain is None:
            return NormSpan.BARE
        return NormSpan.WIDTH if self.width == width and heads > 1 else NormSpan.HEAD

    @property
    def gains(self) -> Mapping[str, str]:
        """The paths of its weights, and their names in `Problem.extras`."""
        roles = () if self.gain is None else zip(self.paths, WORDS, strict=True)
        return {f"{path}.weight": f"{role}_norm" for path, role in roles}

    def claimed(self, conventions: Conventions, span: NormSpan) -> Conventions:
        """The conventions with those of this norm."""
        return replace(
            conventions,
            norm_kind=self.kind,
            norm_gain=self.gain or NormGain.PLAIN,
            norm_span=span,
            norm_order=self.order,
            norm_default=NormDefault.SPACING if self.epsilon is None else NormDefault.FIXED,
        )

    def always(self, premises: Premises) -> Premises:
        """The premises with that of this norm."""
        return replace(premises, qk_norm=True, norm_epsilon=self.epsilon)

    def applied(self, rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """The rows normalised; epsilon is nothing beside them."""
        rows = rows - rows.mean(-1, keepdim=True) if self.kind is NormKind.LAYER else rows
        square = rows.square().sum(-1, keepdim=True)
        unit = rows / (square if self.kind is NormKind.L2 else square / self.width).sqrt()
        if weight is None:
            return unit
        return unit * (weight + 1.0 if self.gain is NormGain.PLUS_ONE else weight)


def role_of(path: str) -> str:
    """Whether the part of a module at this path is named as a norm of queries or of keys; else nothing."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.rpartition(".")[2]).lower()
    words = [word for word in re.split(r"[_\d]+", spaced) if word]
    if not any(word.startswith(NORMS) or word.endswith(NORMS) for word in words):
        return ""
    roles = [role for role, names in WORDS.items() if names & set(words)]
    joined = [role for role, names in WORDS.items() if any(f"{n}{end}" in words for n in names for end in NORMS)]
    found = roles or joined
    return found[0] if len(found) == 1 else ""


def query_key_norms(module: nn.Module, heads: int, width: int) -> FoundNorm | None:
    """The norms of queries and keys, each of one head or of all, if there are two that are alike and known."""
    paths = {role: [p for p, _ in module.named_modules() if role_of(p) == role] for role in WORDS}
    if any(len(found) != 1 for found in paths.values()):
        return None
    query, key = (module.get_submodule(found[0]) for found in paths.values())
    for each in (width // heads, width):
        found = _known(query, each)
        if found is not None and found == _known(key, each):
            return replace(found, paths=(paths["query"][0], paths["key"][0]))
    return None


def _known(norm: nn.Module, width: int) -> FoundNorm | None:
    """What a norm does with rows of this width; None where it is no known one."""
    named = dict(norm.named_parameters())
    if set(named) - {"weight", "bias"} or any(p.shape != (width,) for p in named.values()):
        return None
    probe = _Probe.of(norm, torch.float64, width)
    if probe is None:
        return None
    gains = [None] if probe.weight is None else list(NormGain)
    for kind, gain in product(NormKind, gains):
        found = FoundNorm(kind, gain, 0.0, width, ("", ""), "bias" in named)
        if _same(probe(LARGE), found.applied(probe.rows(LARGE), probe.weight)):
            epsilon = _epsilon(norm, found)
            return None if epsilon == () else replace(found, epsilon=epsilon[0])
    return None


@dataclass(frozen=True, eq=False)
class _Probe:
    """A copy of a norm with drawn weights in some dtype, and rows for it."""

    norm: nn.Module
    dtype: torch.dtype
    unit: torch.Tensor
    weight: torch.Tensor | None

    @classmethod
    def of(cls, norm: nn.Module, dtype: torch.dtype, width: int) -> _Probe | None:
        """That of a norm; None where it cannot be copied or called."""
        generator = torch.Generator().manual_seed(5)
        copy = safe_call(lambda: deepcopy(norm).to(dtype)).value
        if copy is None:
            return None
        with torch.no_grad():
            for name, parameter in copy.named_parameters():
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
                parameter.copy_(drawn if name == "weight" else torch.zeros_like(drawn))
        weight = getattr(copy, "weight", None)
        unit = torch.randn(1, 1, 3, width, generator=generator, dtype=torch.float64)
        return cls(copy, dtype, unit, None if weight is None else weight.detach().double())

    def rows(self, size: float) -> torch.Tensor:
        """(1, 1, 3, width), of this size."""
        return self.unit * size

    def __call__(self, size: float) -> torch.Tensor | None:
        """What the norm makes of them."""
        with torch.no_grad():
            answer = safe_call(lambda: self.norm(self.rows(size).to(self.dtype))).value
        return answer.double() if isinstance(answer, torch.Tensor) and answer.shape == self.unit.shape else None


def _epsilon(norm: nn.Module, found: FoundNorm) -> tuple[float | None, ...]:
    """What it adds, as answers to small rows show; None where that is the spacing of the dtype; nothing if unknown."""
    seen = []
    for dtype in (torch.float64, torch.float32):
        probe = _Probe.of(norm, dtype, found.width)
        if probe is None:
            return ()
        size = TINY if found.kind is NormKind.L2 else SMALL
        answer = probe(size)
        if answer is None:
            return ()
        gain = 1.0 if probe.weight is None else probe.weight + (found.gain is NormGain.PLUS_ONE)
        rows = probe.rows(size)
        rows = rows - rows.mean(-1, keepdim=True) if found.kind is NormKind.LAYER else rows
        root = (rows * gain / answer).abs().median().item()
        mean = 0.0 if found.kind is NormKind.L2 else rows.square().mean(-1).median().item()
        seen.append(root if found.kind is NormKind.L2 else max(root**2 - mean, 0.0))
    spacings = [torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32)]
    if all(abs(one - other) < 0.01 * other for one, other in zip(seen, spacings, strict=True)):
        return (None,)
    return (float(f"{seen[0]:.3g}"),) if abs(seen[0] - seen[1]) <= 0.01 * seen[0] + SMALL**2 else ()


def as_called(found: FoundNorm, module: nn.Module, call: Callable[[nn.Module], object], width: int) -> FoundNorm | None:
    """The norm with its order as a call of the module shows it; None where it stands in front of the projections.

    `call` gives the module tokens that are all alike: what is rotated differs from token to token.
    """
    given: list[torch.Tensor] = []
    parts = [module.get_submodule(path) for path in found.paths]
    handles = [part.register_forward_pre_hook(lambda _, args: given.append(args[0].detach())) for part in parts]
    try:
        with torch.no_grad():
            done = safe_call(lambda: call(module))
    finally:
        for handle in handles:
            handle.remove()
    if done.error or not given or any(rows.shape[-1] != found.width for rows in given):
        return None
    rows = torch.cat([each.reshape(-1, found.width) for each in given[:1]])
    if found.width == width and torch.allclose(rows, torch.full_like(rows, ALIKE)):
        return None
    different = len({tuple(row) for row in rows.double().mul(1e4).round().tolist()})
    return replace(found, order=NormOrder.FIRST if different <= width // found.width else NormOrder.LAST)


def _same(answer: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return answer is not None and torch.allclose(answer, expected, rtol=NEAR, atol=NEAR)
