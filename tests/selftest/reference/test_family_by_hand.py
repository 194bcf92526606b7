"""The family's answers worked out by hand, each against the reference and the loops; all scales are 1."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, pi, tanh
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, ModuleForm, Sharing, Sizes
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.features import NOTHING
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.reference.family_oracle import kv_heads
from attention_conformance.tests.selftest.reference.test_oracle import assert_output, op, ratio


def asking(query: ArrayLike, key: ArrayLike, value: ArrayLike, extras: dict[str, Any], **asked: Any) -> Problem:
    arrays = {name: np.asarray(array) for name, array in extras.items()}
    return op(query, key, value, scale=1.0, extras=arrays, extension=replace(NOTHING, **asked))


def test_two_tokens_turned_by_a_quarter() -> None:
    """With d_k = 2 there is one pair and its frequency is 1, whatever the base: token m is turned by m radians.

    So a query at position 1 meets the key at position 0 with cos 1, and that at position 1 with cos 0.
    """
    problem = asking([[[[1.0, 0.0]]]], [[[[1.0, 0.0], [1.0, 0.0]]]], [[[[1.0], [0.0]]]], {}, rotary_base=7.0)
    late = replace(problem, extension=replace(problem.extension, query_start=1))
    assert_output(late, [[[log(exp(np.cos(1.0)) + exp(1.0))]]], "log_sum_exp")
    assert_output(problem, [[[log(exp(1.0) + exp(np.cos(1.0)))]]], "log_sum_exp")


def test_the_second_pair_turns_as_the_base_says() -> None:
    """d_k = 4 and base 16 / pi^2: the second pair's frequency is base^(-1/2) = pi / 4, so position 2 is a quarter turn.

    A query (.., 1, 0) at position 2 becomes (.., 0, 1) in that pair: orthogonal to a key of the same components at
    position 0, and in line with one of (.., 0, 1).
    """
    base = 16.0 / pi**2
    keys = {"halves": [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], "interleaved": [[0, 0, 1.0, 0], [0, 0, 0, 1.0]]}
    for pairing, (along, across) in keys.items():
        conventions = Conventions().claiming({"rotary-pairing": pairing})
        for key, score in ((along, 0.0), (across, 1.0)):
            problem = asking([[[along]]], [[[key]]], [[[[1.0]]]], {}, rotary_base=base, query_start=2)
            assert_output(problem, [[[score]]], "log_sum_exp", conventions)  # of one key it is the score


def test_a_sink_as_high_as_the_sum_halves_the_output() -> None:
    """Two keys of score 0 have e^lse = 2: a sink of log 2 takes as much as both, a sink of 0 a third."""
    rows = ([[[[0.0]], [[0.0]]]], [[[[5.0], [3.0]], [[5.0], [3.0]]]], [[[[8.0], [4.0]], [[8.0], [4.0]]]])
    problem = asking(*rows, {"sinks": [log(2.0), 0.0]}, sinks=True)
    assert_output(problem, [[[[3.0]], [[4.0]]]])
    assert_output(problem, [[[[0.25, 0.25]], [[1 / 3, 1 / 3]]]], "weights")
    assert_output(problem, [[[log(4.0)], [log(3.0)]]], "log_sum_exp")


def test_a_sink_alone_leaves_nothing() -> None:
    """Where no key may be seen the sink has all the weight: the output is 0 whatever is claimed for empty rows."""
    for answer in EmptyRow:
        problem = asking([[[[1.0]]]], [[[[2.0]]]], [[[[3.0]]]], {"sinks": [0.5]}, sinks=True)
        hidden = replace(problem, attn_mask=np.zeros((1, 1), bool))
        parts = solve(hidden, Conventions().claiming({"empty-row": answer})).parts
        found = [parts[name].value.item() for name in ("output", "weights", "log_sum_exp")]
        assert found == [0.0, 0.0, 0.5]


def test_softcap_at_a_known_value() -> None:
    """Scores 0 and log 3 under a cap of 1: tanh(log 3) = (9 - 1) / (9 + 1) = 0.8. A bias comes after the cap."""
    rows = ([[[[1.0]]]], [[[[0.0], [log(3.0)]]]], [[[[1.0], [0.0]]]])
    problem = asking(*rows, {}, softcap=1.0)
    assert_output(problem, [[[[1 / (1 + exp(0.8)), exp(0.8) / (1 + exp(0.8))]]]], "weights")
    assert_output(replace(problem, attn_mask=np.array([[0.8, 0.0]])), [[[[0.5]]]])
    wide = asking(*rows, {}, softcap=50.0)
    assert_output(wide, [[[log(1 + exp(50.0 * tanh(log(3.0) / 50.0)))]]], "log_sum_exp")


def test_alibi_takes_the_distance_off() -> None:
    """Equal scores and a slope of log 2: the weights halve with each step from the query, to both sides."""
    zeros = [[[[0.0]] * 3]]
    problem = asking([[[[0.0]]] * 1], zeros, zeros, {"alibi_slopes": [log(2.0)]}, alibi=True, query_start=1)
    assert_output(problem, [[[[0.25, 0.5, 0.25]]]], "weights")
    late = replace(problem, extension=replace(problem.extension, query_start=2))
    assert_output(late, [[[[1 / 7, 2 / 7, 4 / 7]]]], "weights")
    assert_output(late, [[[log(7 / 4)]]], "log_sum_exp")


def test_relative_biases_lie_from_before_to_after() -> None:
    """A table log 1, log 2, log 5 of distances -1, 0 and 1; farther keys share the outermost entries."""
    zeros, table = [[[[0.0]] * 4]], [[log(1.0), log(2.0), log(5.0)]]
    problem = asking([[[[0.0]]] * 1], zeros, zeros, {"relative_bias": table}, relative_bias=1, query_start=1)
    assert_output(problem, [[[[1 / 13, 2 / 13, 5 / 13, 5 / 13]]]], "weights")


def test_a_window_counts_besides_the_query() -> None:
    """Four equal keys, queries 0 to 3, one to the left and none to the right.

    Counted with the query's own, a window of 1 is that key alone.
    """
    zeros = [[[[0.0]] * 4]]
    problem = asking(zeros, zeros, zeros, {}, window_left=1, window_right=0)
    half = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
    assert_output(problem, [[half]], "weights")
    counted = solve(problem, Conventions().claiming({"window-count": "including"})).parts["weights"]
    assert np.array_equal(counted.value, np.eye(4)[None, None])


def test_documents_see_their_own_tokens() -> None:
    """Lengths 1 and 2 of queries, 2 and 1 of keys: document 0 has keys 0 and 1, document 1 has key 2."""
    query, key, value = [[[[0.0]] * 3]], [[[[0.0]] * 3]], [[[[1.0], [3.0], [7.0]]]]
    lengths = {"query_lengths": [1, 2], "key_lengths": [2, 1]}
    assert_output(asking(query, key, value, lengths), [[[[2.0], [7.0], [7.0]]]])
    ids = {"query_segments": [[4, 9, 4]], "key_segments": [[9, 4, 4]]}
    assert_output(asking(query, key, value, ids), [[[[5.0], [1.0], [5.0]]]])
    # Key 0 of document 4 stands after query 0 nowhere: both are its first tokens.
    causal = replace(asking(query, key, value, ids), causal=True)
    assert_output(causal, [[[[3.0], [1.0], [5.0]]]])


def test_groups_in_both_orders() -> None:
    """One key each, so that the output is the value of the key head that a query head uses."""
    zeros, values = [[[[0.0]]] * 2], [[[[1.0]], [[2.0]]]]
    problem = op([[[[0.0]]] * 4], zeros, values)
    assert_output(problem, [[[[1.0]], [[1.0]], [[2.0]], [[2.0]]]])
    tiled = solve(problem, Conventions().claiming({"group-order": "tiled"})).parts["output"]
    assert tiled.value.ravel().tolist() == [1.0, 2.0, 1.0, 2.0]


def test_zero_key_and_gates() -> None:
    """One key of score log 3 beside a key of zeros: weights 3/4 and 1/4, and a gate of -2 on what is left."""
    problem = asking([[[[1.0]]]], [[[[log(3.0)]]]], [[[[8.0]]]], {"head_gates": [-2.0]}, zero_attn=True)
    assert_output(problem, [[[[-12.0]]]])
    assert_output(problem, [[[[0.75, 0.25]]]], "weights")
    assert_output(replace(problem, attn_mask=np.zeros((1, 1), bool)), [[[[0.0]]]])


def test_dropped_weights_are_not_made_up_for() -> None:
    """Two equal keys at a rate of a half: the kept one counts twice its half, the returned weights stay as claimed."""
    problem = op([[[[0.0]]]], [[[[0.0], [0.0]]]], [[[[3.0], [5.0]]]])
    kept = np.array([[[[0.0, 2.0]]]])
    parts = solve(problem, Conventions(), kept).parts
    assert (parts["output"].value.item(), parts["weights"].value.ravel().tolist()) == (5.0, [0.5, 0.5])
    after = solve(problem, Conventions().claiming({"returned-weights": "after-dropout"}), kept).parts
    assert after["weights"].value.ravel().tolist() == [0.0, 1.0]
    assert solve(problem, Conventions(), np.zeros((1, 1, 1, 2))).parts["output"].value.item() == 0.0


def test_the_base_of_the_log_sum_exp() -> None:
    """Four keys of score 0: log 4 is 2 in base 2."""
    problem = op([[[[0.0]]]], [[[[0.0]] * 4]], [[[[0.0]] * 4]])
    found = solve(problem, Conventions().claiming({"log-sum-exp-base": "2"})).parts["log_sum_exp"]
    assert ratio([[[2.0]]], found) <= 1.0


def test_key_heads_of_a_module_are_told_by_the_widths() -> None:
    form = ModuleForm(Sharing.NONE, 5, 3, 4, 3)
    problem = build(Case(sizes=Sizes(num_heads=4, num_kv_heads=2), module=form), "float64")
    assert problem.num_kv_heads == kv_heads(problem) == 2


def test_a_gradient_of_a_sink_is_what_it_takes() -> None:
    """One key of score 0 and value v beside a sink of 0: the output is v / 2, its derivative by the sink -v / 4."""
    problem = asking([[[[0.0]]]], [[[[0.0]]]], [[[[3.0]]]], {"sinks": [0.0]}, sinks=True)
    asked = replace(problem, cotangent=np.ones((1, 1, 1, 1)), needs=("sinks", "value"))
    parts = solve(asked).parts
    wanted = {"sinks": [-0.75], "value": [[[[0.5]]]]}
    for name, numbers in wanted.items():
        assert ratio(np.asarray(numbers), parts[f"gradients.{name}"]) <= 1.0
