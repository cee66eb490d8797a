"""Fitting heads to comparisons, the gate, and schedules. Expected values are made with NumPy alone."""

import math

import numpy as np
import pytest
import torch

from vlmrm_gym.learning.answers import plan_rounds
from vlmrm_gym.learning.fitting import (
    Comparisons,
    FitOptions,
    cross_entropy,
    disagreement,
    find_obstacle,
    fit,
    judge,
    predict,
)
from vlmrm_gym.rewards import PreferenceHead

VIEWS, SIZE = 2, 5


def random_head(seed=0, hidden_size=7, ensemble=3):
    """A head whose constants and biases are not those of a new one."""
    head = PreferenceHead((VIEWS, SIZE), ensemble=ensemble, hidden_size=hidden_size, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for tensor in [*head.biases, head.feature_mean, head.reward_mean]:
        tensor.data = torch.randn(tensor.shape, generator=generator) / 2
    head.feature_scale.fill_(1.7), head.reward_std.fill_(0.3)
    return head.requires_grad_(False)


def comparisons(count, length=3, seed=0, **columns):
    rng = np.random.default_rng(seed)
    own = {
        "features": rng.normal(size=(count, 2, length, VIEWS, SIZE)),
        "preferences": rng.choice([0, 0.25, 0.5, 1], count),
        "confidences": rng.uniform(0.1, 1, count),
        "held_out": np.arange(count) % 5 == 0,
    } | columns
    return Comparisons(**{name: np.asarray(own[name], bool if name == "held_out" else np.float32) for name in own})


def members_by_numpy(head, features):
    """float64 (E, ...): a loop over networks, of features (..., V, D)."""
    x = features.reshape(*features.shape[:-2], -1).astype(np.float64)
    x = (x - head.feature_mean.numpy()) / float(head.feature_scale)
    outputs = []
    for e in range(head.ensemble):
        y = x
        for layer in range(3):
            y = y @ head.weights[layer][e].numpy() + head.biases[layer][e, 0].numpy()
            y = y if layer == 2 else np.maximum(y, 0)
        outputs.append(y[..., 0])
    return np.array(outputs)


def loss_by_numpy(rewards, answers, weights):
    """Bradley-Terry's, of rewards (N, 2, T)."""
    strength = np.exp(rewards.sum(2))
    second = strength[:, 1] / strength.sum(1)
    losses = -answers * np.log(second) - (1 - answers) * np.log(1 - second)
    return (weights * losses).sum() / weights.sum()


def test_rewards_are_the_standardised_and_bounded_mean_of_the_networks():
    head, features = random_head(), comparisons(20).features[:, 0, 0]
    expected = (members_by_numpy(head, features).mean(0) - float(head.reward_mean)) / 0.3
    np.testing.assert_allclose(head(torch.from_numpy(features)).numpy(), 5 * np.tanh(expected / 5), atol=1e-5)
    assert head(1e4 * torch.from_numpy(features)).abs().max() <= 5


def test_cross_entropy_is_that_of_segments_whose_rewards_add_up():
    head, own = random_head(), comparisons(30, 4)
    rewards = members_by_numpy(head, own.features).mean(0)
    loss, accuracy = cross_entropy(head, own)
    assert loss == pytest.approx(loss_by_numpy(rewards, own.preferences, own.confidences), abs=1e-5)
    difference, decided = rewards.sum(2)[:, 1] - rewards.sum(2)[:, 0], own.preferences != 0.5
    assert accuracy == pytest.approx(((difference > 0) == (own.preferences > 0.5))[decided].mean())
    np.testing.assert_allclose(predict(head, own.features), difference, atol=1e-5)


def test_the_loss_of_a_fit_is_the_mean_over_networks_of_what_is_not_held_out():
    """With a learning rate of 0, the last epoch's loss is that of the weights as they were drawn."""
    own, logged = comparisons(30), comparisons(40).features[:, 0, 0]
    new = PreferenceHead((VIEWS, SIZE), hidden_size=7)
    loss = fit(new, own, logged, FitOptions(learning_rate=0, epochs=2, batch_size=7))
    fitted = own[~own.held_out]
    expected = [
        loss_by_numpy(rewards, fitted.preferences, fitted.confidences)
        for rewards in members_by_numpy(new, fitted.features)
    ]
    assert loss == pytest.approx(np.mean(expected), abs=1e-5)


def test_a_fit_standardises_rewards_over_the_log():
    own, logged = comparisons(30), 3 + comparisons(400, seed=5).features[:, 0, 0]
    new = PreferenceHead((VIEWS, SIZE), hidden_size=7)
    fit(new, own, logged, FitOptions(epochs=3))
    rewards = 5 * np.arctanh(new(torch.from_numpy(logged)).numpy() / 5)  # before they were bounded
    assert rewards.mean() == pytest.approx(0, abs=1e-4)
    assert rewards.std() == pytest.approx(1, abs=1e-4)
    x = (logged.reshape(400, -1) - new.feature_mean.numpy()) / float(new.feature_scale)
    np.testing.assert_allclose([*x.mean(0), x.std()], [*np.zeros(VIEWS * SIZE), 1], atol=1e-3)


def answered(count, mistakes=0.0, seed=0, **columns):
    """Comparisons by a sum of features, some of them turned around, and features of states with their truth."""
    own, rng = comparisons(count, 1, seed), np.random.default_rng(seed)
    truth = own.features.sum((2, 3, 4))
    answers = (truth[:, 1] > truth[:, 0]) != (rng.random(count) < mistakes)
    return comparisons(
        count, features=own.features, **{"preferences": answers, "confidences": np.ones(count), **columns}
    )


def rank_correlation(head, seed=99):
    features = comparisons(500, 1, seed).features[:, 0, 0]
    ranks = [np.argsort(np.argsort(one)) for one in (head(torch.from_numpy(features)).numpy(), features.sum((1, 2)))]
    return np.corrcoef(ranks)[0, 1]


def fitted(own, seed=0, **options):
    head = PreferenceHead((VIEWS, SIZE), seed=seed)
    fit(head, own, own.features[:, 0, 0], FitOptions(**options), seed)
    return head


def test_a_fit_finds_the_order_in_spite_of_mistakes_and_regularisation_makes_rewards_alike():
    assert rank_correlation(fitted(answered(300, mistakes=0.1))) > 0.9
    weak, strong = (fitted(answered(60), l2=l2, learning_rate=1e-2, epochs=20) for l2 in (0.0, 1e5))
    features = torch.from_numpy(answered(60).features[:, 0, 0])
    assert strong.members(features).std(1).max() < 0.1 * weak.members(features).std(1).min()


def test_a_fit_depends_on_its_seed_alone():
    torch.manual_seed(1)
    before, heads = torch.get_rng_state(), []
    for seed in (0, 0, 1):
        heads.append(fitted(answered(50), seed, epochs=2).to_bytes())
    assert heads[0] == heads[1] != heads[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_disagreement_is_the_deviation_of_the_networks_probabilities():
    head, own = random_head(), comparisons(25)
    rewards = members_by_numpy(head, own.features).sum(3)
    probabilities = 1 / (1 + np.exp(rewards[..., 0] - rewards[..., 1]))
    np.testing.assert_allclose(disagreement(head, own.features), probabilities.std(0), atol=1e-5)


def test_a_head_that_is_worse_on_held_out_answers_does_not_replace_the_old_one():
    own = answered(200)
    good, bad = fitted(own), fitted(answered(200, mistakes=1.0))
    options = FitOptions()
    for new, old, accepted, sentence in [
        (good, None, True, "The new head is used: on 40 held-out answers its cross-entropy is"),
        (bad, None, False, "There is no head yet"),
        (good, bad, True, "that of the old head"),
        (bad, good, False, "The old head stays"),
        (good, good, True, "The new head is used"),
    ]:
        verdict = judge(new, old, own, options)
        assert verdict.accepted == accepted
        assert sentence in verdict.reason
        assert verdict.held_out_loss == pytest.approx(cross_entropy(new, own[own.held_out])[0])
        assert old is not None or f"that of chance {np.log(2):.3f}" in verdict.reason


def test_only_the_newest_held_out_answers_decide():
    """The first answers say the opposite of the last ten that are held out."""
    own = answered(200)
    preferences = np.where(np.arange(200) < 150, 1 - own.preferences, own.preferences)
    changed = comparisons(200, features=own.features, preferences=preferences, confidences=np.ones(200))
    of_newest = fitted(own)
    assert judge(of_newest, None, changed, FitOptions(newest_held_out=10)).accepted
    assert not judge(of_newest, None, changed, FitOptions(newest_held_out=40)).accepted


def test_what_nothing_can_be_learned_from_is_said():
    for own, sentence in [
        (comparisons(9), "too few answers: 7 to fit, 2 held out"),
        (comparisons(50, held_out=np.zeros(50)), "too few answers: 50 to fit, 0 held out"),
        (comparisons(50, preferences=np.full(50, 0.5)), "All 50 answers are alike, 0.5."),
        (comparisons(50, preferences=np.ones(50)), "All 50 answers are alike, 1."),
        (comparisons(50, confidences=np.zeros(50)), "No held-out answer has a confidence above 0."),
        (comparisons(50, confidences=np.arange(50) % 5 == 0), "No fitted answer has a confidence above 0."),
        (
            comparisons(50, preferences=np.repeat([0.0, 0.5], 25), confidences=np.repeat([1.0, 0.0], 25)),
            "All 25 answers are alike, 0.",
        ),
    ]:
        assert sentence in find_obstacle(own, FitOptions())
    assert find_obstacle(comparisons(50), FitOptions()) is None


def test_the_sessions_of_a_schedule_have_all_questions_and_none_is_without():
    assert plan_rounds(10, 1, lambda t: 1 / (1 + t)) == [1] * 10
    assert plan_rounds(40, 10, "math:exp") == plan_rounds(40, 10, math.exp) == [6, 8, 11, 15]
    assert (plan_rounds(90, 30), plan_rounds(90, 30, lambda t: 2 - t)) == ([30] * 3, [40, 30, 20])
    for total, pairs, schedule in [(20, 2, lambda t: 1 - 0.99 * t), (1, 300, "constant"), (1999, 7, "math:exp")]:
        plan = plan_rounds(total, pairs, schedule)
        assert (sum(plan), len(plan)) == (total, -(-total // pairs))
        assert min(plan) >= 1


def test_settings_out_of_their_range_are_refused():
    for make, message in [
        (lambda: plan_rounds(0, 5), "`total` must be an integer of at least 1"),
        (lambda: plan_rounds(5, 5, "linear"), '`schedule` must be "constant", a function, or its'),
        (lambda: plan_rounds(50, 5, lambda t: -t), "`schedule` must return finite numbers above 0"),
        (lambda: FitOptions(epochs=0), "`epochs` must be an integer of at least 1"),
        (lambda: FitOptions(l2=-1), "`l2` must be a finite number of at least 0"),
        (lambda: FitOptions(held_out=1.0), "`held_out` must be between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
