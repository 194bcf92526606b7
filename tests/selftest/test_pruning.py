"""The worked experiment on head gates: its predictions are those of the loss's own derivatives."""

from __future__ import annotations

import pytest
import torch

from attention_conformance.tests.measurements.pruning import (
    HEADS,
    Findings,
    Recall,
    Samples,
    agreement,
    examined,
    gated,
)


@pytest.fixture(scope="module")
def found() -> Findings:
    torch.manual_seed(3)
    return examined(Recall().double(), Samples.drawn(600, torch.Generator().manual_seed(4)))


def test_predictions_are_the_expansion_of_the_loss(found: Findings) -> None:
    """With half the step the error of the first order falls to a quarter, that of the second to an eighth."""
    direction = torch.linspace(1.0, 2.0, HEADS, dtype=torch.float64)
    first, second = (
        [abs(found.measured(step * direction)[0] - predict(step * direction)) for step in (0.02, 0.01)]
        for predict in (found.first_order, found.second_order)
    )
    assert 3.5 < first[0] / first[1] < 4.5
    assert 7.0 < second[0] / second[1] < 9.0


def test_importance_is_a_mean_of_absolute_values(found: Findings) -> None:
    assert found.importance.shape == (HEADS,)
    assert (found.importance > found.gradient.abs()).all()


def test_gates_are_open_afterwards(found: Findings) -> None:
    with gated(found.model, torch.zeros(HEADS)):
        assert not found.model.gates.any()
    assert (found.model.gates == 1.0).all()


def test_agreement_is_that_of_ranks() -> None:
    values = torch.tensor([0.1, 5.0, 0.3])
    assert agreement(values, values.exp()) == pytest.approx(1.0)
    assert agreement(values, -values) == pytest.approx(-1.0)
