"""Keys of a bounded input that many workers read: pairs are a set, and none may be missing."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import TALLIES
from streamveil.engine.run import discover
from streamveil.engine.run.key_choice import KeyChoice
from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.mechanisms import Registry, Requirement
from streamveil.mechanisms.core.event_tallies import sum_bytes
from streamveil.mechanisms.core.records import InputLost
from streamveil.mechanisms.discovery.key_draw import TooManyPairs
from streamveil.mechanisms.queries.reading import query_set

DAY = 86_400_000_000
DAYS, USERS = 4, 80


def events(dictionary=False):
    random = np.random.default_rng(5)
    shape = DAYS, USERS
    places = np.char.add("place ", random.geometric(0.4, shape).ravel().astype(str))
    texts = pa.array(places.tolist())
    days = np.repeat(np.arange(DAYS), USERS)
    return pa.RecordBatch.from_pydict(
        {
            "user": [f"u{user}" for user in np.tile(np.arange(USERS), DAYS)],
            "place": texts.dictionary_encode() if dictionary else texts,
            "time": pa.array(days * DAY, pa.timestamp("us", "UTC")),
        }
    )


def choice(**options):
    asked = query_set(
        "1d",
        [
            sv.count("visits", by="place", keys="discover"),
            sv.distinct("users", by="place", keys={"discover": {"max_keys": 3}}),
        ],
        None,
    )
    given = {"delta": 1e-6, "noise_key": bytes(32), "may_be_empty": True, **options}
    registry = Registry.of(default=(Requirement(2, 60.0), None))
    return KeyChoice(QueryPlan(asked, registry, columns_for(asked, "user", "time"), **given))


def messages(made, batches):
    """What workers send for some batches, and the word how many messages there are."""
    mapper, sent, tallies = made.mapper(), [], []
    for batch in batches:
        for output in made.map_batch(mapper, batch):
            if output.tag == TALLIES:
                tallies.append(output.value)
            else:
                sent.append(output.value[1])
    return [*sent, LossLimit.of(made.plan).check(sum_bytes(tallies), made.stream)[1]]


def found(made, sent):
    (output,) = made.choose(made.stream, sent)
    return output.value


def test_keys_do_not_depend_on_batches_nor_on_their_order_nor_on_repetition():
    made, whole = choice(), events()
    keys = found(made, messages(made, [whole]))
    assert b"place 1" in keys
    assert keys.count(b"place 2") == 2
    parts = [whole.slice(start, 50) for start in range(0, whole.num_rows, 50)]
    for batches in (parts[::-1], [whole, *parts], [events(dictionary=True)], parts * 3):
        assert found(made, messages(made, batches)[::-1]) == keys


def test_no_key_is_found_if_pairs_are_missing_or_come_twice():
    made = choice()
    sent = messages(made, [events().slice(0, 100), events().slice(100)])
    for wrong in (sent[1:], sent[:-1], [*sent, sent[0]]):
        with pytest.raises(InputLost, match="an earlier step failed or was lost"):
            found(made, wrong)


def test_too_many_pairs_stop_the_run(monkeypatch):
    made = choice()
    sent = messages(made, [events()])
    monkeypatch.setattr(discover, "MOST_PAIRS", 9)
    with pytest.raises(TooManyPairs):
        found(made, sent)


def test_a_pair_is_sent_once_for_a_batch():
    made, whole = choice(), events()
    once, *_ = messages(made, [whole])
    again, *_ = messages(made, [pa.concat_batches([whole] * 3)])
    assert again == once
