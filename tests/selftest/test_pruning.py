"""The worked experiment on head gates: its predictions are those of the loss's own derivatives."""

from __future__ import annotations

import pytest
import torch

from attention_conformance.tests.measurements.pruning import (
    HEADS,
    GateAnalysis,
    Recall,
    Samples,
    agreement,
    examined,
    gated,
)


@pytest.fixture(scope="module")
def analysis() -> GateAnalysis:
    torch.manual_seed(3)
    return examined(Recall().double(), Samples.drawn(600, torch.Generator().manual_seed(4)))


def test_predictions_are_the_expansion_of_the_loss(analysis: GateAnalysis) -> None:
    """With half the step the error of the first order falls to a quarter, that of the second to an eighth."""
    direction = torch.linspace(1.0, 2.0, HEADS, dtype=torch.float64)
    first, second = (
        [abs(analysis.measured(step * direction)[0] - predict(step * direction)) for step in (0.02, 0.01)]
        for predict in (analysis.first_order, analysis.second_order)
    )
    assert 3.5 < first[0] / first[1] < 4.5
    assert 7.0 < second[0] / second[1] < 9.0


def test_importance_is_a_mean_of_absolute_values(analysis: GateAnalysis) -> None:
    assert analysis.importance.shape == (HEADS,)
    assert (analysis.importance > analysis.gradient.abs()).all()


def test_gates_are_open_afterwards(analysis: GateAnalysis) -> None:
    with gated(analysis.model, torch.zeros(HEADS)):
        assert not analysis.model.gates.any()
    assert (analysis.model.gates == 1.0).all()


def test_agreement_is_that_of_ranks() -> None:
    values = torch.tensor([0.1, 5.0, 0.3])
    assert agreement(values, values.exp()) == pytest.approx(1.0)
    assert agreement(values, -values) == pytest.approx(-1.0)
