"""Transforms: other ways for torch to go through one call of a function or module, to the same answer."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from attention_conformance.implementations.adapters.op_options import BATCHED, OF_AXES
from attention_conformance.implementations.adapters.tensors import TORCH_DTYPES
from attention_conformance.spec.problem import AUTOCAST

Called: TypeAlias = Callable[..., Any]
Transform: TypeAlias = Callable[..., Any]
"""Called as transform(function, *inputs, **options), where inputs are query, key and value, batch first."""

BACKEND = "eager"
"""Code is traced and guarded as for every backend, and compiled in a tenth of the time, without a C++ compiler."""
RECOMPILATIONS = 64
"""Beyond torch's own limit of 8 a function would go on uncompiled, without a word."""


def through(transform: Transform, function: Called) -> Called:
    """The function with its calls transformed."""
    return lambda *inputs, **options: transform(function, *inputs, **options)


class Through(nn.Module):
    """The same of a module; its parameters stay those of the module within."""

    def __init__(self, transform: Transform, module: nn.Module) -> None:
        super().__init__()
        self.transform, self.within = transform, module

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        """As the module within."""
        return self.transform(self.within, *inputs, **options)


def in_no_grad(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """Of inputs that require gradients."""
    with torch.no_grad():
        return function(*_each(inputs, lambda x: x.detach().requires_grad_()), **options)


def in_inference_mode(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """Of inputs that were made in it."""
    with torch.inference_mode():
        return function(*_each(inputs, Tensor.clone), **options)


def in_evaluation(module: Called, *inputs: Tensor, **options: Any) -> Any:
    """A module in evaluation mode, and no gradients recorded."""
    assert isinstance(module, nn.Module)
    mode = module.training
    try:
        module.eval()
        return in_no_grad(module, *inputs, **options)
    finally:
        module.train(mode)


def in_autocast(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """To the half type of `AUTOCAST`; the answer is converted back to the dtype of the inputs."""
    with torch.autocast(inputs[0].device.type, TORCH_DTYPES[AUTOCAST]):
        answer = function(*inputs, **options)
    return _of_answer(answer, lambda x: x.to(inputs[0].dtype))


def compiled_by(backend: str) -> Transform:
    """Compiled once, and again by torch where it thinks it has to."""

    def compiled(function: Called, *inputs: Tensor, **options: Any) -> Any:
        run = _compiled(function, backend)
        with torch._dynamo.config.patch(cache_size_limit=RECOMPILATIONS):
            return run(*inputs, **options)

    return compiled


@cache
def _compiled(function: Called, backend: str) -> Called:
    run: Called = torch.compile(function, backend=backend)
    return run


class _Exportable(nn.Module):
    def __init__(self, function: Called, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *inputs: Tensor, **options: Tensor) -> Any:
        return self.function(*inputs, **options, **self.options)


def exported(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """Exported with other numbers of the same shapes: what depends on numbers has to be in the graph."""
    tensors = {name: option for name, option in options.items() if isinstance(option, Tensor)}
    plain = {name: option for name, option in options.items() if name not in tensors}
    examples = {name: _other(option) for name, option in tensors.items()}
    program = torch.export.export(_Exportable(function, plain), _each(inputs, _other), examples)
    return program.module()(*inputs, **tensors)


def _other(example: Tensor) -> Tensor:
    """The same numbers from the last to the first; whole numbers, which are sizes and places, as they are."""
    whole = not example.is_floating_point() and example.dtype is not torch.bool
    return example if whole else example.flip(tuple(range(example.ndim)))


def vmapped(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """Vectorised over lanes, into which the batch is split; masks without a batch are the same for all of them."""
    batch = len(inputs[0])
    lanes = next((n for n in range(2, batch) if batch % n == 0), batch)
    given = _named(inputs, options)
    first = {name: next(n for n, other in given.items() if other is x) for name, x in given.items()}
    split = {n: x for n, x in given.items() if first[n] == n}
    axes = {n: 0 if _has_batch(n, x, batch) else None for n, x in split.items()}
    split = {n: x.unflatten(0, (lanes, len(x) // lanes)) if axes[n] == 0 else x for n, x in split.items()}

    def lane(held: dict[str, Tensor]) -> Any:
        return _present(_called(function, options, {n: held[first[n]] for n in given}))

    return _of_answer(torch.func.vmap(lane, in_dims=(axes,))(split), lambda x: x.flatten(0, 1))


def unbatched(function: Called, *inputs: Tensor, **options: Any) -> Any:
    """One sample after the other, without a batch axis."""
    batch = len(inputs[0])
    samples = [_called(function, options, given) for given in _samples(inputs, options, batch)]
    answers = [_present(sample) for sample in samples]
    if isinstance(answers[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*answers, strict=True))
    return torch.stack(answers)


def _samples(inputs: tuple[Tensor, ...], options: Mapping[str, Any], batch: int) -> Iterator[dict[str, Tensor]]:
    given = _named(inputs, options)
    for number in range(batch):
        made: dict[int, Tensor] = {}
        for name, x in given.items():
            made.setdefault(id(x), _sample(name, x, number, batch))
        yield {name: made[id(x)] for name, x in given.items()}


def _sample(name: str, x: Tensor, number: int, batch: int) -> Tensor:
    if not _has_batch(name, x, batch):
        return x[0] if x.ndim == 4 else x
    return x.unflatten(0, (batch, -1))[number] if name == "attn_mask" and x.ndim == 3 else x[number]


def _has_batch(name: str, x: Tensor, batch: int) -> bool:
    """A mask of three axes has the heads of a sample side by side in its first, as nn.MultiheadAttention takes them."""
    if name != "attn_mask":
        return name.isdecimal() or name in BATCHED or OF_AXES.get(name) == x.ndim
    return x.ndim == 3 or (x.ndim == 4 and len(x) == batch)


def _named(inputs: tuple[Tensor, ...], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors of a call: inputs by their numbers, options by their names."""
    tensors = {name: option for name, option in options.items() if isinstance(option, Tensor)}
    return {str(number): x for number, x in enumerate(inputs)} | tensors


def _called(function: Called, options: Mapping[str, Any], given: Mapping[str, Tensor]) -> Any:
    inputs = [x for name, x in given.items() if name.isdecimal()]
    return function(*inputs, **{name: given.get(name, option) for name, option in options.items()})


def _each(inputs: tuple[Tensor, ...], change: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """Every input changed; one that plays several roles stays one."""
    made = {id(x): change(x) for x in inputs}
    return tuple(made[id(x)] for x in inputs)


def _present(answer: Any) -> Any:
    """An answer without the parts that are None."""
    return tuple(x for x in answer if x is not None) if isinstance(answer, tuple) else answer


def _of_answer(answer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    found = _present(answer)
    return tuple(map(change, found)) if isinstance(found, tuple) else change(found)
