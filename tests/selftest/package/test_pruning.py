"""The worked experiment on head gates: its predictions are those of the loss's own derivatives."""

import pytest
import torch

from attention_conformance.tests.measurements import pruning


@pytest.fixture(scope="module")
def analysis() -> pruning.GateAnalysis:
    torch.manual_seed(3)
    return pruning.examined(pruning.Recall().double(), pruning.Samples.drawn(600, torch.Generator().manual_seed(4)))


def test_predictions_are_the_expansion_of_the_loss(analysis: pruning.GateAnalysis) -> None:
    """With half the step the error of the first order falls to a quarter, that of the second to an eighth."""
    direction = torch.linspace(1.0, 2.0, pruning.HEADS, dtype=torch.float64)
    first, second = (
        [abs(analysis.measured(step * direction)[0] - predict(step * direction)) for step in (0.02, 0.01)]
        for predict in (analysis.first_order, analysis.second_order)
    )
    assert 3.5 < first[0] / first[1] < 4.5
    assert 7.0 < second[0] / second[1] < 9.0


def test_importance_is_a_mean_of_absolute_values(analysis: pruning.GateAnalysis) -> None:
    assert analysis.importance.shape == (pruning.HEADS,)
    assert (analysis.importance > analysis.gradient.abs()).all()


def test_gates_are_open_afterwards(analysis: pruning.GateAnalysis) -> None:
    with pruning.gated(analysis.model, torch.zeros(pruning.HEADS)):
        assert not analysis.model.gates.any()
    assert (analysis.model.gates == 1.0).all()


def test_agreement_is_that_of_ranks() -> None:
    values = torch.tensor([0.1, 5.0, 0.3])
    assert pruning.agreement(values, values.exp()) == 1.0
    assert pruning.agreement(values, -values) == -1.0
