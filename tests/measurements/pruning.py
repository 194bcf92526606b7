"""An experiment on head gates: which heads of a small trained model can be pruned, predicted and measured.

`make pruning` trains it, writes docs/pruning.md and fails if a statement of the page does not hold.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.inhouse.fused import FusedAttention
from attention_conformance.tests.measurements.pages import write_page

WIDTH, HEADS = 48, 6
KEYS, VALUES, LENGTH = 24, 8, 8
"""Number of different keys and of different values, and of pairs in a memory."""
NOISE = 0.2
"""The share of random answers: without any the loss falls to 0, and so does every gradient."""
STEPS, BATCH, HELD_OUT, ALONE = 300, 256, 2000, 500
"""Steps and batch of the training; samples for the test, and those of them whose gradients are taken one by one."""

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Keys (B, L) and values (B, L) of the memory, and query keys (B, 2)."""


class Recall(nn.Module):
    """Recalls the values of two keys at once from a memory of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.first, self.second = (nn.Embedding(KEYS, WIDTH) for _ in range(3))
        self.value = nn.Embedding(VALUES, WIDTH)
        self.attention = FusedAttention(WIDTH, HEADS, batch_first=True, head_gates=True)
        self.read = nn.Linear(WIDTH, 2 * VALUES)

    @property
    def gates(self) -> Tensor:
        return self.attention.get_parameter("head_gates")

    def forward(self, keys: Tensor, values: Tensor, query_keys: Tensor) -> Tensor:
        """(B, L), (B, L) and (B, 2) -> (B, 2, VALUES)."""
        memory = self.key(keys) + self.value(values)
        query = self.first(query_keys[:, 0]) + self.second(query_keys[:, 1])
        recalled, _ = self.attention(query[:, None], memory, memory, need_weights=False)
        scores: Tensor = self.read(recalled[:, 0]).unflatten(-1, (2, VALUES))
        return scores


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs, and the right answers (B, 2)."""

    inputs: Inputs
    answers: Tensor

    @classmethod
    def drawn(cls, count: int, generator: torch.Generator) -> Samples:
        keys = torch.rand(count, KEYS, generator=generator).argsort(-1)[:, :LENGTH]
        values = torch.randint(VALUES, (count, LENGTH), generator=generator)
        at = torch.rand(count, LENGTH, generator=generator).argsort(-1)[:, :2]
        others = torch.randint(VALUES, (count, 2), generator=generator)
        noisy = torch.rand(count, 2, generator=generator) < NOISE
        return cls((keys, values, keys.gather(1, at)), torch.where(noisy, others, values.gather(1, at)))

    def one(self, number: int) -> Samples:
        keys, values, query_keys = (x[number : number + 1] for x in self.inputs)
        return Samples((keys, values, query_keys), self.answers[number : number + 1])

    def loss(self, model: Recall) -> Tensor:
        return F.cross_entropy(model(*self.inputs).flatten(0, 1), self.answers.flatten())

    def accuracy(self, model: Recall) -> float:
        return float((model(*self.inputs).argmax(-1) == self.answers).double().mean())


@dataclass(frozen=True, eq=False)
class GateAnalysis:
    """Derivatives by the gates of a trained model; one entry for each head.

    Attributes:
        importance: mean over samples of |d loss / d gate|, equation 25.4.
        gradient, curvature: of the loss of all samples by the gates, (H,) and (H, H).
    """

    model: Recall
    samples: Samples
    importance: Tensor
    gradient: Tensor
    curvature: Tensor
    loss: float

    def first_order(self, closed: Tensor) -> float:
        """The predicted rise of the loss, equation 25.5, when the gates with 1 in (H,) are closed."""
        return -float(self.gradient @ closed)

    def second_order(self, closed: Tensor) -> float:
        """The same with the curvature."""
        return self.first_order(closed) + float(closed @ self.curvature @ closed) / 2.0

    def measured(self, closed: Tensor) -> tuple[float, float]:
        """The rise of the loss, and the remaining accuracy."""
        with torch.no_grad(), gated(self.model, 1.0 - closed):
            return self.samples.loss(self.model).item() - self.loss, self.samples.accuracy(self.model)


@contextmanager
def gated(model: Recall, gates: Tensor) -> Iterator[None]:
    """The model with these gates, and with open ones afterwards."""
    model.gates.data.copy_(gates)
    yield
    model.gates.data.fill_(1.0)


def trained(generator: torch.Generator) -> Recall:
    """The model after its training, in which all gates are 1."""
    model = Recall()
    model.gates.requires_grad_(False)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        Samples.drawn(BATCH, generator).loss(model).backward()
        optimiser.step()
    model.gates.requires_grad_(True)
    return model.eval()


def examined(model: Recall, samples: Samples) -> GateAnalysis:
    """The analysis of the model's gates on test samples."""
    loss = samples.loss(model)
    (gradient,) = torch.autograd.grad(loss, model.gates, create_graph=True)
    rows = [torch.autograd.grad(entry, model.gates, retain_graph=True)[0] for entry in gradient]
    alone = (torch.autograd.grad(samples.one(n).loss(model), model.gates)[0] for n in range(ALONE))
    importance = torch.stack([each.abs() for each in alone]).mean(0)
    return GateAnalysis(model, samples, importance, gradient.detach(), torch.stack(rows), loss.item())


def ranked(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def agreement(first: Tensor, second: Tensor) -> float:
    """Spearman's coefficient of rank correlation."""
    return float(torch.corrcoef(torch.stack([ranked(first), ranked(second)]))[0, 1])


def requirements(analysis: GateAnalysis, rises: Tensor, spare: Tensor) -> Iterator[str]:
    """The statements of the page that do not hold."""
    alone = torch.eye(HEADS)
    if set(analysis.importance.topk(2).indices.tolist()) != set(rises.topk(2).indices.tolist()):
        yield "the two most important heads are not the two that cost most"
    if max(abs(analysis.first_order(each)) for each in alone) > rises.max() / 4.0:
        yield "the first-order prediction is not small"
    if any(abs(analysis.second_order(each) - rises[h]) > rises.max() / 2.0 for h, each in enumerate(alone)):
        yield "the curvature does not predict the rise"
    if analysis.samples.accuracy(analysis.model) - analysis.measured(spare)[1] > NOISE / 10.0:
        yield "the accuracy falls without the other heads"
    if analysis.measured(spare)[0] <= float(rises @ spare):
        yield "several heads together cost no more than one by one"
    if _difference_of_rows(analysis, spare) > 1e-5 * analysis.loss:
        yield "closed gates are not rows of zeros"


def _difference_of_rows(analysis: GateAnalysis, closed: Tensor) -> float:
    """Of the loss with closed gates from that with rows of the output matrix set to 0."""
    pruned = Recall()
    pruned.load_state_dict(analysis.model.state_dict())
    with torch.no_grad():
        pruned.attention.out_proj.weight.unflatten(1, (HEADS, -1)).mul_(1.0 - closed[:, None])
        return abs(analysis.samples.loss(pruned).item() - analysis.loss - analysis.measured(closed)[0])


def values(analysis: GateAnalysis, rises: Tensor, spare: Tensor) -> dict[str, Any]:
    """The values of the page."""
    rise_together, accuracy_without = analysis.measured(spare)
    return {
        "pairs": LENGTH,
        "heads": HEADS,
        "noise": NOISE,
        "best": (1.0 - NOISE) + NOISE / VALUES,
        "steps": STEPS,
        "accuracy": analysis.samples.accuracy(analysis.model),
        "answers": 2 * HELD_OUT,
        "loss": analysis.loss,
        "one_by_one": list(_one_by_one(analysis)),
        "in_turn": list(_in_turn(analysis)),
        "important": sorted(analysis.importance.topk(2).indices.tolist()),
        "rank_correlation": agreement(analysis.importance, rises),
        "largest_first_order": max(abs(analysis.first_order(each)) for each in torch.eye(HEADS)),
        "largest_rise": rises.max().item(),
        "sum_of_rises": (rises @ spare).item(),
        "rise_together": rise_together,
        "accuracy_without": accuracy_without,
    }


def _one_by_one(analysis: GateAnalysis) -> Iterator[Sequence[str]]:
    for head, closed in enumerate(torch.eye(HEADS)):
        orders = (f"{rise:+.4f}" for rise in (analysis.first_order(closed), analysis.second_order(closed)))
        yield str(head), f"{analysis.importance[head]:.4f}", *orders, *_measured(analysis, closed)


def _in_turn(analysis: GateAnalysis) -> Iterator[Sequence[str]]:
    order, closed = analysis.importance.argsort().tolist(), torch.zeros(HEADS)
    for count, head in enumerate(order, 1):
        closed[head] = 1.0
        predicted = f"{float(analysis.importance @ closed):.4f}", f"{analysis.second_order(closed):+.4f}"
        yield ", ".join(map(str, order[:count])), *predicted, *_measured(analysis, closed)


def _measured(analysis: GateAnalysis, closed: Tensor) -> tuple[str, str]:
    rise, accuracy = analysis.measured(closed)
    return f"{rise:+.4f}", f"{accuracy:.1%}"


def main() -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    model = trained(generator)
    analysis = examined(model, Samples.drawn(HELD_OUT, generator))
    rises = torch.tensor([analysis.measured(closed)[0] for closed in torch.eye(HEADS)])
    spare = torch.ones(HEADS).index_fill(0, analysis.importance.topk(2).indices, 0.0)
    missed = list(requirements(analysis, rises, spare))
    print("\n".join(missed))
    write_page("pruning.md", **values(analysis, rises, spare))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
