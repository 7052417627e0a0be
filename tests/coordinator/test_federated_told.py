"""What a federated round says, in its words; and a balancer that is told little."""

import numpy as np
import pytest
from federated_rounds import balancer_of, played

from paceline.coordinator.federated import FederatedBalancer, ForecastSource, Reason
from paceline.coordinator.federated.round_reasons import reason_of
from paceline.coordinator.federated.summary import summary_of

# -- the words -----------------------------------------------------------------------------------------------------

FACTS = {"size": 8, "mean": 16.0, "local_steps": 10, "speed": 20.0, "source": ForecastSource.OWN}
FACTS |= {"comm": 1.0, "seconds": 5.0, "deadline": 9.0, "silent": 0, "rejected": 0}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.NO_ROOM, "c is not asked: its data or its memory holds no sample."),
        (
            Reason.LEFT_OUT,
            "c is not asked: even with the smallest batch it would miss the deadline of 9 s, at 20 samples/s by its "
            "own reports and 1 s to communicate.",
        ),
        (
            Reason.TRIED_AGAIN,
            "c gets the smallest batch, 8 samples, though it may miss the deadline of 9 s: left out for long, its data "
            "would be starved and its speed never measured again.",
        ),
        (
            Reason.TESTED,
            "c gets 8 samples a step, to see whether its time follows its batch: of late it did not, as if it trained "
            "by epochs.",
        ),
        (
            Reason.FLAT,
            "c gets 8 samples a step and is not balanced: its time, 5 s, does not follow its batch, as if it trained "
            "by epochs instead of 10 local steps.",
        ),
        (
            Reason.BALANCED,
            "c gets 8 samples a step (50 % of the mean): 20 samples/s by its own reports and 1 s to communicate make 5 "
            "s for 10 local steps.",
        ),
    ],
)
def test_a_reason_is_a_sentence_in_these_words(reason, said):
    assert reason_of("c", reason, **FACTS) == said
    assert reason_of("c", reason, **{**FACTS, "silent": 2, "rejected": 1}) == (
        f"{said} It has not replied for 2 rounds. It reported for 1 round a speed that cannot be, which is not used."
    )


def test_before_any_reply_a_batch_is_whole_unless_it_is_said_to_be_less():
    told = {**FACTS, "source": ForecastSource.NOTHING}
    assert reason_of("c", Reason.BALANCED, **told) == "c gets 8 samples a step: nobody has reported yet."
    assert reason_of("c", Reason.BALANCED, **told, is_reduced=True) == (
        "c gets 8 samples a step: nobody has reported yet; as nobody has replied so far, it is less than the mean "
        "batch."
    )


def test_a_round_in_which_all_replies_come_at_once_names_nobody():
    own = np.full(2, ForecastSource.OWN)
    none = np.full(2, Reason.BALANCED)
    assert summary_of(["a", "b"], np.array([4, 9]), np.array([2.0, 2.4]), own, none) == (
        "2 clients asked, with 4 to 9 samples a step: all replies are expected after 2.4 s, the median after 2.2 s."
    )
    assert summary_of(["a", "b"], np.array([0, 0]), np.zeros(2), own, none) == (
        "Nobody is asked: nobody could reply by the deadline, or has data or memory for a sample."
    )


# -- a balancer that is told little --------------------------------------------------------------------------------


def test_a_balancer_that_is_told_little_has_the_limits_of_its_docstring():
    plain = FederatedBalancer(batch=32, local_steps=5)
    found = (plain.least, plain.largest, plain.risk, plain.try_again, plain.plausible, plain.most_clients)
    assert found == (8, 8.0, 0.7, 10, 100.0, 1_000_000)
    assert (plain.deadline, plain.local_epochs, plain.rounds, len(plain)) == (None, None, 0, 0)
    assert [FederatedBalancer(batch=n, local_steps=1).least for n in (1, 3, 4, 7, 8)] == [1, 1, 1, 1, 2]
    assert FederatedBalancer(batch=32, local_epochs=1.0).local_steps == 0
    with pytest.raises(ValueError, match="give local_steps or local_epochs, and not both, got None and None"):
        FederatedBalancer(batch=32)
    with pytest.raises(ValueError, match="give local_steps or local_epochs, and not both, got 5 and 2"):
        FederatedBalancer(batch=32, local_steps=5, local_epochs=2)


def test_a_state_needs_its_rounds_and_its_clients():
    balancer = balancer_of()
    played(balancer, [10.0, 20.0], [0.0, 0.0])
    state = balancer.state_dict()
    assert (state["rounds"].tolist(), state["unanswered"].tolist()) == (1, 0)
    for name in ("rounds", "clients/names"):
        with pytest.raises(ValueError, match=r"the state must come from state_dict of a FederatedBalancer, got \['"):
            balancer_of().load_state_dict({key: value for key, value in state.items() if key != name})
    again = balancer_of()
    again.load_state_dict({key: value for key, value in state.items() if key != "unanswered"})
    assert (again.rounds, again.clients) == (1, ["c0", "c1"])
    with pytest.raises(ValueError, match="the state holds 2 clients, but most_clients is 1"):
        balancer_of(most_clients=1).load_state_dict(state)
    balancer_of(most_clients=2).load_state_dict(state)
    with pytest.raises(ValueError, match="the state is not whole, it lacks 'turn': was it saved by another version"):
        balancer_of().load_state_dict({key: value for key, value in state.items() if key != "clients/turn"})
