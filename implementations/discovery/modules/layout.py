"""Layouts of modules: which axis is that of the samples, which parameters are for which heads, and what that allows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import one_mask
from attention_conformance.implementations.api.contract import Claims, Unsupported, any_case
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.one_key_head import with_key_heads
from attention_conformance.implementations.discovery.modules.bare import Inputs
from attention_conformance.implementations.discovery.modules.constructor_names import LONGEST, MOST_SAMPLES, longest
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_masks import fit_form
from attention_conformance.implementations.discovery.modules.parameters import patterns
from attention_conformance.implementations.discovery.probe import HALF
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import PositionIds

SKIPPING = 4
"""Positions that are given may be so many times those that are counted: they skip some."""
MOST_SIZES = 6
"""Sizes of its arrays that are tried as numbers of tokens."""


def length_first(
    module: nn.Module, answer: Callable[[nn.Module, Inputs], torch.Tensor], tokens: int, width: int
) -> bool:
    """Whether its layout is (L, B, E): as its attribute states, or else as no sample depends on another."""
    if isinstance(batch_first := getattr(module, "batch_first", None), bool):
        return not batch_first
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, tokens, width, generator=generator)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / width**0.5)
        module.eval()
        outcome = safe_call(lambda: not _independent(module, x, answer, 0) and _independent(module, x, answer, 1))
    return bool(outcome.value)  # where it raises, a later call reports the error


def _independent(
    module: nn.Module, x: torch.Tensor, answer: Callable[[nn.Module, Inputs], torch.Tensor], axis: int
) -> bool:
    """Whether the last slice along the axis stays when the first changes; a causal token would depend on it."""
    changed = x.clone()
    changed.select(axis, 0).add_(1.0)
    before, after = (answer(module, (given, given, given)) for given in (x, changed))
    return torch.allclose(before.select(axis, -1), after.select(axis, -1), rtol=0.0, atol=HALF)


def has_tables(make: Constructor) -> bool:
    """Whether it keeps an array of as many rows as tokens that it is built for: it takes no more."""
    with torch.random.fork_rng(devices=[]):
        module = built(make)
    return any(longest(make.heads) in each.shape for each in _arrays(module))


def holds_table(make: Constructor) -> bool:
    """Whether one of the parameters that are held has a row for each token or distance that it is built for.

    Those of a function that needs arrays have as many as it is given, and may.
    """
    if getattr(make.kind, "in_parts", False):
        return True
    with torch.random.fork_rng(devices=[]):
        module = built(replace(make, held={}))
    held = (p for path, p in module.named_parameters() if any(each in make.held for each, _ in patterns(path)))
    return any(max(each.shape, default=0) >= longest(make.heads) for each in held)


def _arrays(module: nn.Module) -> Iterator[torch.Tensor]:
    """What it keeps: buffers, parameters, and tensors that are plain attributes."""
    yield from (*module.buffers(), *module.parameters())
    yield from (each for part in module.modules() for each in vars(part).values() if isinstance(each, torch.Tensor))


def needs_even(make: Constructor, call: ModuleCall) -> bool:
    """Whether heads of odd widths raise as it is built or called, as where sines and cosines alternate."""

    def output(width: int) -> torch.Tensor:
        module = make(make.heads * width, make.heads)
        return call.plain(module, [torch.zeros(2, make.tokens, make.heads * width)] * 3, make.heads)

    with torch.random.fork_rng(devices=[]):
        even, odd = (safe_call(partial(output, width)).value for width in (4, 5))
    return even is not None and odd is None


RAISES = "it raises with more"


@dataclass(frozen=True)
class Limits:
    """What a module is built for, and takes no more of.

    Attributes:
        tables: it has arrays with a row for each token that it is built for.
        samples, tokens: seen by calls; 0: any number.
        why: there are no more tokens.
    """

    tables: bool
    samples: int
    tokens: int
    why: str = RAISES

    def __bool__(self) -> bool:
        return self.tables or self.samples > 0 or self.tokens > 0

    @property
    def notes(self) -> list[str]:
        """On what is not given because of what was seen by calls."""
        counts = {"samples": (self.samples, RAISES), "tokens": (self.tokens, self.why)}
        return [unclaimed(f"more than {most} {what}", why) for what, (most, why) in counts.items() if most]

    def within(self, case: Case) -> Case:
        """The case with as many samples and tokens at most."""
        s = case.sizes
        most = min(self.tokens or LONGEST, longest(s.num_heads) if self.tables else LONGEST)
        if self.tables or self.tokens:
            if case.extension.position_ids is not PositionIds.NONE:
                case, most = _near(case), most // SKIPPING
            case = case.sized(query_length=min(most, s.query_length), key_length=min(most, s.key_length))
        return case.sized(batch=min(self.samples, s.batch)) if self.samples else case


def limits_of(make: Constructor, call: ModuleCall) -> Limits:
    """Its limits: of samples by calls with more and more; of tokens where a number of them is a size of its arrays."""

    def answers(samples: int, tokens: int) -> bool:
        inputs = [torch.zeros(samples, tokens, make.width)] * 3
        return safe_call(lambda: call.plain(built(make), inputs, make.heads)).value is not None

    with torch.random.fork_rng(devices=[]):
        counts = [MOST_SAMPLES + 1, *range(MOST_SAMPLES, 0, -1)]
        samples = next((count for count in counts if answers(count, make.tokens)), 0)
        module = built(make)
        sizes = {size for each in _arrays(module) for size in each.shape}
        longer = sorted(size for size in sizes if make.tokens < size < LONGEST)[:MOST_SIZES]
        tokens = next((size for size in longer if answers(1, size) and not answers(1, size + 1)), 0)
        hidden = _first_hidden(module)
    samples = 0 if samples > MOST_SAMPLES else samples
    if make.tokens <= hidden <= (tokens or LONGEST):
        return Limits(has_tables(make), samples, hidden, f"a mask that it keeps hides token {hidden} from itself")
    return Limits(has_tables(make), samples, tokens)


def _first_hidden(module: nn.Module) -> int:
    """The first token that a square mask of a module hides from itself, while others see themselves; 0 for none."""
    for each in module.buffers():
        masks = each.is_floating_point() or each.dtype is torch.bool
        if masks and each.ndim > 1 and each.shape[-1] == each.shape[-2]:
            own = each.reshape(-1, *each.shape[-2:])[0].diagonal()
            other = (own != own[:1]).nonzero()
            if len(other) and len(each.unique()) == 2:
                return int(other[0])
    return 0


def _near(case: Case) -> Case:
    """The case with positions of no more than a few times its tokens."""
    far = case.extension.position_ids is PositionIds.FAR
    return case.extended(position_ids=PositionIds.ASCENDING) if far else case


def fit_of_call(call: ModuleCall, even_heads: bool, limits: Limits, kv_heads: int, case: Case) -> Case | Unsupported:
    """The nearest case that it supports."""
    case = limits.within(case)
    width = case.sizes.d_k + case.sizes.d_k % 2
    even = case.sized(d_k=width, d_v=width if case.sizes.d_v == case.sizes.d_k else case.sizes.d_v)
    formed = fit_form(even if even_heads else case, call.form, call.bias_form)
    return formed if isinstance(formed, Unsupported) else usual_fit(call, kv_heads)(formed)


def usual_fit(call: ModuleCall, kv_heads: int) -> Callable[[Case], Case | Unsupported]:
    """The fit of a causal flag that describes the mask; where it is always causal, a mask is one of its own."""
    fit = one_mask if "is_causal" in call.options else any_case
    return partial(with_key_heads, kv_heads, fit) if kv_heads else fit


def fit_of_heads(make: Constructor, claims: Claims) -> Callable[[Case], Case | Unsupported]:
    """The fit of the claims, without one head where the module then has other parameters, such as no projection."""
    with torch.random.fork_rng(devices=[]):
        one, several = (safe_call(partial(make, make.width, heads)).value for heads in (1, make.heads))
    if make.one_head or (one is not None and several is not None and _held(make, one) == _held(make, several)):
        return claims.fit

    def fit(case: Case) -> Case | Unsupported:
        if case.sizes.num_heads == 1:
            return Unsupported("with one head it has other parameters")
        return claims.fit(case)

    return fit


def _held(make: Constructor, module: nn.Module) -> set[str]:
    """The paths of its parameters, with a star for the number of a head."""
    paths = (path for path, _ in module.named_parameters())
    return {next((p for p, _ in patterns(path) if p in make.places), path) for path in paths}
