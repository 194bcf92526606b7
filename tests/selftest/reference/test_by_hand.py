"""Answers worked out by hand, each against the reference and the loops."""

from dataclasses import replace
from math import exp, log, pi, sqrt, tanh
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, ModuleForm, Sharing, Sizes
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.reference.agreement import PARTS, op, ratio
from attention_conformance.tests.selftest.reference.family_oracle import kv_heads
from attention_conformance.tests.selftest.reference.oracle import attention


def module(
    query: NDArray[np.float64], num_heads: int, key: NDArray[np.float64] | None = None, **options: Any
) -> Problem:
    """A problem of (B, L, width) arrays, self-attention unless a key is given."""
    key = query if key is None else key
    return Problem(Scope.MODULE, query, key, options.pop("value", key), num_heads=num_heads, **options)


def assert_output(
    problem: Problem, expected: ArrayLike, part: str = "output", conventions: Conventions = Conventions()
) -> None:
    """The reference and the loops give what was worked out by hand."""
    answer = solve(problem, conventions).parts[part]
    by_hand = np.asarray(expected, np.float64)
    assert answer.value.shape == by_hand.shape
    assert ratio(by_hand, answer) <= 1.0
    assert ratio(getattr(attention(problem, conventions), part), Expected(by_hand, answer.bound)) <= 1.0


def test_three_tokens_of_width_four_with_two_heads() -> None:
    """Source C's example, with the identity for projections: head 0 sees columns 0 and 1, head 1 the rest."""
    tokens = np.array([[[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]])
    eye = np.eye(4)
    problem = module(tokens, 2, parameters={"w_q": eye, "w_k": eye, "w_v": eye})
    # Scores are q.k / sqrt(2) with q.k of 0, 1 or 2, so every exponential is a power of this:
    e = exp(1 / sqrt(2))
    first: list[list[float]] = [[e, 1, e], [1, e, e], [e, e, e * e]]
    second: list[list[float]] = [[e, 1, 1], [1, e, 1], [1, 1, 1]]
    weights = [[[x / sum(row) for x in row] for row in head] for head in (first, second)]
    assert_output(problem, [weights], "weights")
    expected = [
        [2 * e / (2 * e + 1), (1 + e) / (2 * e + 1), 1 / (e + 2), e / (e + 2)],
        [(1 + e) / (2 * e + 1), 2 * e / (2 * e + 1), e / (e + 2), 1 / (e + 2)],
        [(1 + e) / (2 + e), (1 + e) / (2 + e), 1 / 3, 1 / 3],
    ]
    assert_output(problem, [expected])
    assert_output(problem, [[[log(sum(row)) for row in head] for head in (first, second)]], "log_sum_exp")


def test_biases_shift_three_tokens() -> None:
    """A bias of the keys changes no weight; a bias of the values moves each output by itself."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    eye, plain = np.eye(2), module(np.zeros((1, 1, 2)), 1)
    parameters = {"w_q": eye, "w_k": eye, "w_v": eye, "w_o": 2 * eye}
    biases = {"b_k": np.array([5.0, -3.0]), "b_v": np.array([0.25, -1.0]), "b_o": np.array([0.0, 7.0])}
    e = exp(1 / sqrt(2))
    rows = [(2 * e, 1 + e, 2 * e + 1), (1 + e, 2 * e, 2 * e + 1), (1 + e, 1 + e, 2 + e)]
    expected = [[2 * (a / n + 0.25), 2 * (b / n - 1.0) + 7.0] for a, b, n in rows]
    problem = replace(plain, query=tokens, key=tokens, value=tokens, parameters=parameters | biases)
    assert_output(problem, [expected])


def ones_example(value: NDArray[np.float64], width: float) -> Problem:
    """Source D's example: 2 samples, 4 queries, 6 keys, width 100, 5 heads, valid lengths 3 and 2."""
    query, key, eye = np.ones((2, 4, 100)), np.ones((2, 6, 100)), np.eye(100)
    parameters = {"w_q": eye, "w_k": eye, "w_v": width * eye, "w_o": eye}
    return module(query, 5, key, value=value, parameters=parameters, valid_lens=np.array([3, 2]))


def test_inputs_of_ones_give_a_constant() -> None:
    problem = ones_example(np.ones((2, 6, 100)), 1.5)
    assert_output(problem, np.full((2, 4, 100), 1.5))
    assert_output(replace(problem, valid_lens=None), np.full((2, 4, 100), 1.5))
    third, half = [1 / 3] * 3 + [0.0] * 3, [1 / 2] * 2 + [0.0] * 4
    assert_output(problem, [[[third] * 4] * 5, [[half] * 4] * 5], "weights")


def test_values_that_count_the_keys_tell_the_valid_lengths() -> None:
    counted = np.broadcast_to(np.arange(6.0)[:, None], (2, 6, 100))
    problem = ones_example(counted, 1.0)
    assert_output(problem, [[[(0 + 1 + 2) / 3] * 100] * 4, [[(0 + 1) / 2] * 100] * 4])
    each = replace(problem, valid_lens=np.array([[1, 2, 3, 4], [6, 5, 1, 0]]))
    means = [[0.0, 0.5, 1.0, 1.5], [2.5, 2.0, 0.0, 0.0]]
    assert_output(each, [[[m] * 100 for m in sample] for sample in means])


def test_two_samples_with_padding() -> None:
    """Source E's mask, rows 1 1 1 and 1 0 0. The scores are 0, ln 2 and ln 3, so the weights are sixths."""
    key, value = [[[0.0], [log(2)], [log(3)]]], [[[6.0], [3.0], [2.0]]]
    padding = np.array([[1, 1, 1], [1, 0, 0]], bool)
    problem = op([[[[1.0]] * 3]] * 2, [key] * 2, [value] * 2, key_padding_mask=padding)
    sixths = [1 / 6, 2 / 6, 3 / 6]
    assert_output(problem, [[[sixths] * 3], [[[1.0, 0.0, 0.0]] * 3]], "weights")
    assert_output(problem, [[[[1.0 + 1.0 + 1.0]] * 3], [[[6.0]] * 3]])
    assert_output(problem, [[[log(6)] * 3], [[0.0] * 3]], "log_sum_exp")


# The attention family; all scales are 1.


def extended(query: ArrayLike, key: ArrayLike, value: ArrayLike, extras: dict[str, Any], **extension: Any) -> Problem:
    arrays = {name: np.asarray(array) for name, array in extras.items()}
    return op(query, key, value, scale=1.0, extras=arrays, extension=replace(NOTHING, **extension))


def test_two_tokens_rotated_by_one_radian() -> None:
    """With d_k = 2 there is one pair and its frequency is 1, whatever the base: token m is rotated by m radians.

    So a query at position 1 meets the key at position 0 with cos 1, and that at position 1 with cos 0.
    """
    problem = extended([[[[1.0, 0.0]]]], [[[[1.0, 0.0], [1.0, 0.0]]]], [[[[1.0], [0.0]]]], {}, rotary_base=7.0)
    late = replace(problem, extension=replace(problem.extension, query_start=1))
    assert_output(late, [[[log(exp(np.cos(1.0)) + exp(1.0))]]], "log_sum_exp")
    assert_output(problem, [[[log(exp(1.0) + exp(np.cos(1.0)))]]], "log_sum_exp")


def test_the_second_pair_rotates_as_the_base_says() -> None:
    """d_k = 4 and base 16 / pi^2: the second pair's frequency is base^(-1/2) = pi / 4, so position 2 is a quarter turn.

    A query (.., 1, 0) at position 2 becomes (.., 0, 1) in that pair: orthogonal to a key of the same components at
    position 0, and in line with one of (.., 0, 1).
    """
    base = 16.0 / pi**2
    keys = {"halves": [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], "interleaved": [[0, 0, 1.0, 0], [0, 0, 0, 1.0]]}
    for pairing, (along, across) in keys.items():
        conventions = Conventions().claiming({"rotary-pairing": pairing})
        for key, score in ((along, 0.0), (across, 1.0)):
            problem = extended([[[along]]], [[[key]]], [[[[1.0]]]], {}, rotary_base=base, query_start=2)
            assert_output(problem, [[[score]]], "log_sum_exp", conventions)  # of one key it is the score


def test_a_sink_as_high_as_the_sum_halves_the_output() -> None:
    """Two keys of score 0 have e^lse = 2: a sink of log 2 takes as much as both, a sink of 0 a third."""
    rows = ([[[[0.0]], [[0.0]]]], [[[[5.0], [3.0]], [[5.0], [3.0]]]], [[[[8.0], [4.0]], [[8.0], [4.0]]]])
    problem = extended(*rows, {"sinks": [log(2.0), 0.0]}, sinks=True)
    assert_output(problem, [[[[3.0]], [[4.0]]]])
    assert_output(problem, [[[[0.25, 0.25]], [[1 / 3, 1 / 3]]]], "weights")
    assert_output(problem, [[[log(4.0)], [log(3.0)]]], "log_sum_exp")


def test_a_sink_alone_leaves_nothing() -> None:
    """Where no key may be seen the sink has all the weight: the output is 0 whatever is claimed for empty rows."""
    for answer in EmptyRow:
        problem = extended([[[[1.0]]]], [[[[2.0]]]], [[[[3.0]]]], {"sinks": [0.5]}, sinks=True)
        hidden = replace(problem, attn_mask=np.zeros((1, 1), bool))
        parts = solve(hidden, Conventions().claiming({"empty-row": answer})).parts
        assert [parts[name].value.item() for name in PARTS] == [0.0, 0.0, 0.5]


def test_softcap_at_a_known_value() -> None:
    """Scores 0 and log 3 under a cap of 1: tanh(log 3) = (9 - 1) / (9 + 1) = 0.8. A bias comes after the cap."""
    rows = ([[[[1.0]]]], [[[[0.0], [log(3.0)]]]], [[[[1.0], [0.0]]]])
    problem = extended(*rows, {}, softcap=1.0)
    assert_output(problem, [[[[1 / (1 + exp(0.8)), exp(0.8) / (1 + exp(0.8))]]]], "weights")
    assert_output(replace(problem, attn_mask=np.array([[0.8, 0.0]])), [[[[0.5]]]])
    wide = extended(*rows, {}, softcap=50.0)
    assert_output(wide, [[[log(1 + exp(50.0 * tanh(log(3.0) / 50.0)))]]], "log_sum_exp")


def test_alibi_takes_the_distance_off() -> None:
    """Equal scores and a slope of log 2: the weights halve with each step from the query, to both sides."""
    zeros = [[[[0.0]] * 3]]
    problem = extended([[[[0.0]]] * 1], zeros, zeros, {"alibi_slopes": [log(2.0)]}, alibi=True, query_start=1)
    assert_output(problem, [[[[0.25, 0.5, 0.25]]]], "weights")
    late = replace(problem, extension=replace(problem.extension, query_start=2))
    assert_output(late, [[[[1 / 7, 2 / 7, 4 / 7]]]], "weights")
    assert_output(late, [[[log(7 / 4)]]], "log_sum_exp")


def test_relative_biases_lie_from_before_to_after() -> None:
    """A table log 1, log 2, log 5 of distances -1, 0 and 1; farther keys share the outermost entries."""
    zeros, table = [[[[0.0]] * 4]], [[log(1.0), log(2.0), log(5.0)]]
    problem = extended([[[[0.0]]] * 1], zeros, zeros, {"relative_bias": table}, relative_bias=1, query_start=1)
    assert_output(problem, [[[[1 / 13, 2 / 13, 5 / 13, 5 / 13]]]], "weights")


def test_a_window_is_counted_without_the_query() -> None:
    """Four equal keys, queries 0 to 3, one to the left and none to the right.

    Counted with the query's own, a window of 1 is that key alone.
    """
    zeros = [[[[0.0]] * 4]]
    problem = extended(zeros, zeros, zeros, {}, window_left=1, window_right=0)
    half = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
    assert_output(problem, [[half]], "weights")
    counted = solve(problem, Conventions().claiming({"window-count": "including"})).parts["weights"]
    assert np.array_equal(counted.value, np.eye(4)[None, None])


def test_documents_see_their_own_tokens() -> None:
    """Lengths 1 and 2 of queries, 2 and 1 of keys: document 0 has keys 0 and 1, document 1 has key 2."""
    query, key, value = [[[[0.0]] * 3]], [[[[0.0]] * 3]], [[[[1.0], [3.0], [7.0]]]]
    lengths = {"query_lengths": [1, 2], "key_lengths": [2, 1]}
    assert_output(extended(query, key, value, lengths), [[[[2.0], [7.0], [7.0]]]])
    ids = {"query_segments": [[4, 9, 4]], "key_segments": [[9, 4, 4]]}
    assert_output(extended(query, key, value, ids), [[[[5.0], [1.0], [5.0]]]])
    # Key 0 of document 4 stands after query 0 nowhere: both are its first tokens.
    causal = replace(extended(query, key, value, ids), causal=True)
    assert_output(causal, [[[[3.0], [1.0], [5.0]]]])


def test_groups_in_both_orders() -> None:
    """One key each, so that the output is the value of the key head that a query head uses."""
    zeros, values = [[[[0.0]]] * 2], [[[[1.0]], [[2.0]]]]
    problem = op([[[[0.0]]] * 4], zeros, values)
    assert_output(problem, [[[[1.0]], [[1.0]], [[2.0]], [[2.0]]]])
    tiled = solve(problem, Conventions().claiming({"group-order": "tiled"})).parts["output"]
    assert tiled.value.ravel().tolist() == [1.0, 2.0, 1.0, 2.0]


def test_zero_key_and_gates() -> None:
    """One key of score log 3 next to a key of zeros: weights 3/4 and 1/4, and a gate of -2 on what is left."""
    problem = extended([[[[1.0]]]], [[[[log(3.0)]]]], [[[[8.0]]]], {"head_gates": [-2.0]}, zero_attn=True)
    assert_output(problem, [[[[-12.0]]]])
    assert_output(problem, [[[[0.75, 0.25]]]], "weights")
    assert_output(replace(problem, attn_mask=np.zeros((1, 1), bool)), [[[[0.0]]]])


def test_dropped_weights_are_not_compensated() -> None:
    """Two equal keys at a rate of a half: the kept one counts twice its half, the returned weights stay as claimed."""
    problem = op([[[[0.0]]]], [[[[0.0], [0.0]]]], [[[[3.0], [5.0]]]])
    dropout_mask = np.array([[[[0.0, 2.0]]]])
    parts = solve(problem, Conventions(), dropout_mask).parts
    assert (parts["output"].value.item(), parts["weights"].value.ravel().tolist()) == (5.0, [0.5, 0.5])
    after = solve(problem, Conventions().claiming({"returned-weights": "after-dropout"}), dropout_mask).parts
    assert after["weights"].value.ravel().tolist() == [0.0, 1.0]
    assert solve(problem, Conventions(), np.zeros((1, 1, 1, 2))).parts["output"].value.item() == 0.0


def test_the_base_of_the_log_sum_exp() -> None:
    """Four keys of score 0: log 4 is 2 in base 2."""
    problem = op([[[[0.0]]]], [[[[0.0]] * 4]], [[[[0.0]] * 4]])
    answer = solve(problem, Conventions().claiming({"log-sum-exp-base": "2"})).parts["log_sum_exp"]
    assert ratio([[[2.0]]], answer) <= 1.0


def test_key_heads_of_a_module_follow_from_the_widths() -> None:
    form = ModuleForm(Sharing.NONE, 5, 3, 4, 3)
    problem = build(Case(sizes=Sizes(num_heads=4, num_kv_heads=2), module=form), "float64")
    assert problem.num_kv_heads == kv_heads(problem) == 2


def test_a_gradient_of_a_sink_is_what_it_takes() -> None:
    """One key of score 0 and value v next to a sink of 0: the output is v / 2, its derivative by the sink -v / 4."""
    problem = extended([[[[0.0]]]], [[[[0.0]]]], [[[[3.0]]]], {"sinks": [0.0]}, sinks=True)
    extension = replace(problem, cotangent=np.ones((1, 1, 1, 1)), needs=("sinks", "value"))
    parts = solve(extension).parts
    by_hand = {"sinks": [-0.75], "value": [[[[0.5]]]]}
    for name, numbers in by_hand.items():
        assert ratio(np.asarray(numbers), parts[f"gradients.{name}"]) <= 1.0
