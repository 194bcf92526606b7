"""Code paths: the proof that torch computed a result by the kernel that an implementation is named after."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from attention_conformance.implementations.adapters.native import Native, natively
from attention_conformance.implementations.api.contract import PathError, Result
from attention_conformance.spec.problem import Problem


@dataclass(frozen=True, eq=False)
class OnPath:
    """A `run` that raises `PathError` where torch computes its result without the operator.

    Timed calls, see `native`, are not watched.

    Attributes:
        run: the `run` to watch.
        operator: the start of the operator's name, such as "aten::_scaled_dot_product_flash_attention", so that the
            variants of a kernel for CPU and GPU are one.
    """

    run: Callable[[Problem, str], Result]
    operator: str

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        with _Operators() as operators:
            result = self.run(problem, device)
        # For empty tensors torch returns before it chooses a kernel.
        empty = 0 in (problem.query.size, problem.key.size, problem.value.size)
        if not empty and not any(name.startswith(self.operator) for name in operators.names):
            raise PathError(f"torch answered without {self.operator}, which this implementation stands for")
        return result

    def native(self, problem: Problem, device: str) -> Native:
        """The call of the `run`."""
        return natively(self.run, problem, device)


class _Operators(TorchDispatchMode):
    """The names of all operators that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))
