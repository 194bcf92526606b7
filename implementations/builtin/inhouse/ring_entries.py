"""The ring as an implementation: a problem is cut into slices, for processes that are kept from call to call.

They are started here, or are those of a group that this process is one of, as torchrun starts it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from attention_conformance.implementations.adapters.op_options import extra_options
from attention_conformance.implementations.adapters.tensors import to_array, to_tensor
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.inhouse.call_options import Options, check
from attention_conformance.implementations.builtin.inhouse.process_group import Processes
from attention_conformance.implementations.builtin.inhouse.ring import ring_attention
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

SLICED = ("query", "key", "value", "cotangent")
Request = tuple[Mapping[str, Array], Mapping[str, Any], tuple[str, ...]]
"""The slices of one process, options, and the names of what gradients are needed of."""


def answered(request: Request) -> dict[str, Array]:
    """What one process of the ring does with its slices."""
    arrays, options, needs = request
    given = _roles({name: to_tensor(array).requires_grad_(name in needs) for name, array in arrays.items()})
    with torch.set_grad_enabled(bool(needs)):
        output, lse = ring_attention(given["query"], given["key"], given["value"], **options)
    results = {"output": to_array(output), "log_sum_exp": to_array(lse)}
    if needs:
        gradients = torch.autograd.grad(output, [given[name] for name in needs], given["cotangent"])
        results |= {name: to_array(gradient) for name, gradient in zip(needs, gradients, strict=True)}
    return results


def in_ring(count: int) -> Callable[[Problem, str], Result]:
    """A `run` in so many processes."""
    processes = Processes(count, answered)

    def run(problem: Problem, device: str) -> Result:
        return _joined(problem, processes.together(_requests(problem, device, count)))

    return run


def in_group(problem: Problem, device: str) -> Result:
    """A `run` in the processes of this one's group, which all call it together."""
    request = _requests(problem, device, dist.get_world_size())[dist.get_rank()]
    answers: list[dict[str, Array]] = [{}] * dist.get_world_size()
    dist.all_gather_object(answers, answered(request))
    return _joined(problem, answers)


def _requests(problem: Problem, device: str, count: int) -> list[Request]:
    """That of each process."""
    if device != "cpu":
        raise ValueError(f"the processes of the ring compute on the CPU, not on {device}")
    arrays, options = problem.arrays(), _options(problem)
    check(problem.query.shape, problem.key.shape, problem.value.shape, Options(**options))
    slices = [{name: _slice(arrays[name], rank, count) for name in SLICED if name in arrays} for rank in range(count)]
    options["lengths"] = tuple([_roles(held)[name].shape[2] for held in slices] for name in ("query", "key"))
    return [(held, options, _needs(problem)) for held in slices]


def _needs(problem: Problem) -> tuple[str, ...]:
    return () if problem.cotangent is None else problem.needs


def _joined(problem: Problem, answers: Sequence[Mapping[str, Array]]) -> Result:
    results = {name: np.concatenate([answer[name] for answer in answers], axis=2) for name in answers[0]}
    gradients = {name: results[name] for name in _needs(problem)}
    return Result(results["output"], log_sum_exp=results["log_sum_exp"], gradients=gradients)


def _options(problem: Problem) -> dict[str, Any]:
    options = extra_options(problem, problem.arrays())
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.tensor(options["alibi_slopes"].astype(np.float64))
    return options | {"is_causal": problem.causal, "scale": problem.scale}


def _roles(given: dict[str, Any]) -> dict[str, Any]:
    """What is given, under the names of every role in which it is used: a shared input comes once."""
    return {"key": given["query"], "value": given.get("key", given["query"]), **given}


def _slice(array: Array, rank: int, count: int) -> Array:
    """The consecutive tokens of a process; some get one more where the length is no multiple."""
    length = array.shape[2]
    return array[:, :, length * rank // count : length * (rank + 1) // count]


_INPUTS = {Feature.CORE, Feature.HEADS, Feature.VALUE_WIDTH, Feature.CROSS, Feature.KEY_VALUE, Feature.EMPTY_SIZES}
_OPTIONS = {Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI}
_FEATURES = _INPUTS | _OPTIONS | {Feature.QUERY_START, Feature.GRADIENTS, Feature.LOG_SUM_EXP}
_CLAIMS = Claims(Scope.OP, frozenset(_FEATURES))
RING = Implementation("inhouse.ring", _CLAIMS, in_group, "attention over sequences cut into slices, one a process")
"""As a function of a process group: it is no built-in, as it needs to be started in several processes."""
RING_2, RING_4 = (
    Implementation(
        f"inhouse.ring.{count}",
        _CLAIMS,
        in_ring(count),
        f"attention over sequences cut into {count} slices, in as many processes with torch.distributed between them",
    )
    for count in (2, 4)
)
