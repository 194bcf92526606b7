"""Relations alone: what can be judged of a module class whose form is unknown, so that no answer can be expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, AsBuilt, Run, moved_at
from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import promises_causal, says_causal
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.attempts import attempts
from attention_conformance.implementations.discovery.modules.constructor_names import SQUARE, SQUARES, Size, size_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall, forward_calls, settled
from attention_conformance.implementations.discovery.modules.harder_inputs import mixes_tokens
from attention_conformance.implementations.discovery.modules.masked_samples import masked_samples
from attention_conformance.implementations.discovery.modules.module_runs import module_run
from attention_conformance.implementations.discovery.modules.narrow_scores import narrow_scores
from attention_conformance.implementations.discovery.modules.pooled import pooled_tokens
from attention_conformance.implementations.discovery.modules.promises import text_of
from attention_conformance.implementations.discovery.modules.same_function import dropout_in_evaluation
from attention_conformance.implementations.discovery.modules.set_blocks import set_blocks
from attention_conformance.implementations.discovery.modules.tried_calls import tried_calls
from attention_conformance.implementations.discovery.modules.tried_makes import tried_makes
from attention_conformance.implementations.discovery.modules.whole_equations import WholeEquation
from attention_conformance.implementations.discovery.modules.whole_modules import of_unknown_form, plain_problem
from attention_conformance.implementations.discovery.modules.whole_samples import AnyAxes, of_samples
from attention_conformance.implementations.discovery.signatures import of_constructor, required
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

HEADS, WIDTH, TOKENS, SAMPLES = 2, 32, 6, 3
"""Sizes that most classes take."""
EVEN = (12, 8, 4, 6, 10)
"""Widths for what has names of its own."""
MOST_MAKES, MOST_CALLS = 6, 12
"""Ways to build it, and to call it, that are tried."""
MOST_ANSWERED, MOST_LOOKS = 6, 150
"""Calls in one layout that are looked at more closely, and those that are tried of one way to build it."""
Layouts: TypeAlias = Sequence[Mapping[str, Any]]
LAYOUTS: Layouts = ({}, {"spatial": 2}, {"spatial": 1}, {"spatial": 3})
"""Of the inputs, the usual one first, as `ModuleCall` has them."""
OF_SQUARES: Layouts = ({"spatial": 4},)
"""Those of squares of tokens."""
ORDERED = re.compile(
    r"(?<!trans)pos|rot|rope|\brel|_rel|relative|alibi|slope|conv|causal|tri[lu]\b|window|shift|local|chunk(?!\()|block"
    r"|pool|unfold|roll|grid|freq|angle|sin\b|cos\b|cis|spatial|height|width\b|arange|cum|distance|decay|hash|bucket"
    r"|embed(?!_dim|ding_dim|_size|_s\b)|seq_?len|max_\w*len|linformer|patch|frame|sort|order|recur|memory|latent|axial"
    r"|row|col(?!lect)|temporal|\btime|video|prefix|special|cls|fft|strid|dilat|index|gather|scatter|interval"
    r"|\[:, ?-?:?\d",
    re.IGNORECASE,
)
"""What the text of a class has in which the order of tokens may matter."""
MOST_NUMBERS = 2**22
"""In the parameters of a module that is looked at."""
NUMBERS = "its numbers"
"""What is not judged."""


def relations_alone(name: str, kind: object, refused: TargetError, device: str) -> Implementation | None:
    """The class, with no claims but relations between its own answers; None where it cannot be called, or has none."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    with torch.random.fork_rng(devices=[]):
        run, tokens = next(_runs(kind, device), (None, TOKENS))
    if run is None:
        return None
    return Implementation(
        name,
        Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}), fit=partial(_sized, tokens)),
        run,
        f"a module class of unknown form: {refused}",
        modes={Feature.AS_BUILT: run},
        findings={NUMBERS: f"judged by {_means(run)}, as {refused}"},
    )


def _means(run: AsBuilt) -> str:
    """By what it is judged, for a message."""
    whole = any(isinstance(each, WholeEquation) for each in run.otherwise.values())
    of_answers = "relations between its own answers"
    return f"the equation of the whole, and by {of_answers}" if whole else f"{of_answers} alone"


def _sized(tokens: int, case: Case) -> Case | Unsupported:
    sizes = {"num_heads": HEADS, "d_k": WIDTH // HEADS, "d_v": WIDTH // HEADS}
    return case.sized(batch=max(SAMPLES, case.sizes.batch), query_length=tokens, key_length=tokens, **sizes)


def _runs(kind: type[nn.Module], device: str) -> Iterator[tuple[AsBuilt, int]]:
    """The ways to build and call it in which it answers, keeps samples apart, and has something to compare.

    Each with the number of tokens that it is called with. Other layouts, and then a square of tokens, are tried where
    the usual one is answered in no way of building it.
    """
    usual = safe_call(lambda: [*islice(forward_calls(kind, Polarity.MASKED_OUT), MOST_CALLS)]).value or []
    makes = [*islice(_makes(kind), MOST_MAKES)]
    for tokens, layouts in ((TOKENS, LAYOUTS[:1]), (TOKENS, LAYOUTS[1:]), (SQUARE, (*LAYOUTS, *OF_SQUARES))):
        for make, module in makes:
            if make.window in SQUARES and tokens != make.tokens:
                continue
            far = partial(_far, in_mode(module, False), iter(range(MOST_LOOKS)), tokens)
            for call in _answered(kind, far, usual, layouts):
                each = safe_call(partial(settled, call, module, WIDTH, HEADS, tokens)).value or call
                if (run := _run(make, module, each, tokens, device)) is not None:
                    yield run, tokens


def _answered(
    kind: type[nn.Module], far: Callable[[ModuleCall], int | None], usual: Sequence[ModuleCall], layouts: Layouts
) -> Iterator[ModuleCall]:
    """The calls that it answers in these layouts, those that need nothing unknown first."""
    for layout in layouts:

        def answered(call: ModuleCall, layout: Mapping[str, Any] = layout) -> int | None:
            return far(replace(call, **layout))

        for calls in ((call for call in usual if answered(call) is None), tried_calls(kind, answered)):
            yield from (replace(call, **layout) for call in islice(calls, MOST_ANSWERED))


class _Counting(TorchFunctionMode):
    """Counts the operations that are begun in a module's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))

    def begin(self, *_: object) -> None:
        """What was given is made, and its forward is called."""
        self.count = 0


def _far(module: nn.Module, left: Iterator[int], tokens: int, call: ModuleCall) -> int | None:
    """How many operations a call begins before it raises, or none where no more are left; None where it answers.

    An answer with more axes than the inputs is that of something that was broadcast.
    """
    if next(left, None) is None:
        return 0
    x = torch.randn(2, tokens, WIDTH)
    with torch.no_grad(), _Counting() as counting:
        handle = module.register_forward_pre_hook(counting.begin)
        answer = safe_call(lambda: call.plain(module, (x, x, x), HEADS)).value
        handle.remove()
    usable = isinstance(answer, torch.Tensor) and answer.ndim <= x.ndim and len(answer) == len(x)
    return None if usable else counting.count


def _makes(kind: type[nn.Module]) -> Iterator[tuple[Constructor, nn.Module]]:
    """Those that can be built at all, each with what is built."""
    for make in chain(_of_inputs(_known(kind)), _numbered(kind), tried_makes(kind, WIDTH, HEADS)):
        module = safe_call(partial(make, WIDTH, HEADS)).value
        if module is not None and sum(each.numel() for each in module.parameters()) > MOST_NUMBERS:
            return  # such as a table for each offset in a window of thousands of tokens: each call would take seconds
        if module is not None:
            yield make, module


def _known(kind: type[nn.Module]) -> Iterator[Constructor]:
    with suppress(TargetError):
        yield from attempts(kind)


def _of_inputs(makes: Iterator[Constructor]) -> Iterator[Constructor]:
    """These, and before each whose widths are all named as those of heads, one where they are those of its inputs."""
    for make in makes:
        of_heads = {name: Size.WIDTH for name, size in make.sizes.items() if size is Size.HEAD_WIDTH}
        if of_heads and Size.WIDTH not in make.sizes.values():
            yield replace(make, sizes={**make.sizes, **of_heads})
        yield make


def _numbered(kind: type[nn.Module]) -> Iterator[Constructor]:
    """With a number for each parameter whose name states none, all of them different."""
    signature = safe_call(lambda: of_constructor(kind)).value
    needed = [p.name for p in signature.parameters.values() if required(p)] if signature else []
    sizes = {name: size for name in needed if (size := size_of(name)) is not None}
    others = [name for name in needed if name not in sizes]
    if {Size.WIDTH, Size.HEADS} <= {*sizes.values()} and len(others) <= len(EVEN):
        yield Constructor(kind, sizes=sizes, options=dict(zip(others, EVEN, strict=False)))


def _run(make: Constructor, module: nn.Module, call: ModuleCall, tokens: int, device: str) -> AsBuilt | None:
    others = () if call.spatial else (replace(call, length_first=True),)
    for each in (call, *others):
        claims = Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}), fit=partial(_sized, tokens))
        check = ClaimCheck(each, partial(module_run, make), claims, device)
        problem = plain_problem(check)
        for run in (look(make, module, each, check) for look in (of_unknown_form, of_samples)):
            whole = {} if run is None or problem is None else _whole(make, run, each, problem, device)
            if run is not None and problem is not None and (_keeps_apart(run, problem, device) or whole):
                run = _as_promised(run, make, module)
                masked = masked_samples(make, each, problem, device)
                dropped = dropout_in_evaluation(make, run, problem, device)
                pools = isinstance(run.call, AnyAxes)
                pooled = pooled_tokens(make, run, each, text_of(make.kind), ORDERED, problem) if pools else {}
                run = replace(run, otherwise={**run.otherwise, **masked, **whole, **dropped, **pooled})
                return run if pools or run.otherwise or run.pieces or run.trained or run.causal else None
    return None


def _whole(make: Constructor, run: AsBuilt, call: ModuleCall, problem: Problem, device: str) -> Mapping[str, Run]:
    """The runs that judge it by the equation of the whole, whatever mistake is next to it."""
    narrow = narrow_scores(make, run.call, problem, device)
    return narrow or set_blocks(make, run.call, call.alone_with_itself().inputs, problem, device)


def _as_promised(run: AsBuilt, make: Constructor, module: nn.Module) -> AsBuilt:
    """It with what its text promises of the order of tokens: none is seen before its turn, or it does not matter."""
    if says_causal(make.kind) or promises_causal(getattr(make.kind, "__name__", ""), make.kind):
        return replace(run, causal=True)
    sized = any(run_tokens in each.shape for each in module.parameters() for run_tokens in (TOKENS, SQUARE))
    ordered = run.causal or sized or ORDERED.search(text_of(make.kind)) or mixes_tokens(module)
    return replace(run, unordered=True) if run.prefixes and not ordered else run


def _keeps_apart(run: AsBuilt, problem: Problem, device: str) -> bool:
    """Whether a sample's answer does not depend on another one, but its tokens depend on each other.

    The axis of tokens might be taken for that of samples, where no form is known.
    """
    moved = problem.with_arrays({name: _first_moved(getattr(problem, name)) for name in INPUTS})
    first, second = (safe_call(partial(_output, run, each, device)).value for each in (problem, moved))
    if first is None or second is None:
        return False
    changed = np.abs(first - second).max(-1) > ROUNDINGS * np.abs(first).max()
    least = 1 if isinstance(run.call, AnyAxes) else 2
    return not changed[1:].any() and int(changed[0].sum()) >= least


def _output(run: AsBuilt, problem: Problem, device: str) -> Array:
    return run(problem.fresh(), device).output


def _first_moved(array: Array) -> Array:
    """With another first token in the first sample."""
    moved = array.copy()
    moved[:1] = moved_at(array[:1], 0)
    return moved
