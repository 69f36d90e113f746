"""The table of users that a stream remembers: what another table changes, and where it is kept."""

import pickle
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import UserTable
from streamveil.mechanisms import ConfigurationError, Registry, Requirement

FIRST = {"ann": (7, 1.0), "bob": (7, 2.0), "cho": (3, 0.5)}
DEFAULT = (Requirement(2, 0.25), 40)


def registry_of(table, default=None):
    return Registry.of(table, default=default)


def now(users):
    """What the table says now, by user."""
    asked = zip(users.now.windows.tolist(), users.now.epsilons.tolist(), strict=True)
    return {user: one for user, one in zip(users.users.to_pylist(), asked, strict=True) if one[0]}


def asked(changes):
    """What a change asks for, by user."""
    batch = changes.batch(5)
    assert set(batch.column("slot").to_pylist()) <= {5}
    rows = [batch.column(name).to_pylist() for name in batch.schema.names]
    found = {user: tuple(figures) for user, _, *figures in zip(*rows, strict=True)}
    assert len(found) == len(changes)
    return found


def figures(window, epsilon):
    return (window, epsilon, window, epsilon)


NOBODY = (None,) * 4


def test_the_same_table_in_another_order_changes_nothing():
    users = UserTable.begin(registry_of(FIRST))
    same = registry_of(dict(reversed(FIRST.items())))
    after, changes = users.changed_to(same)
    assert not changes
    assert after.users.equals(users.users)
    assert now(after) == FIRST


def test_users_join_leave_and_change():
    users = UserTable.begin(registry_of(FIRST))
    table = {"dan": (1, 9.0), "cho": (3, 0.25), "ann": (7, 1.0)}
    after, changes = users.changed_to(registry_of(table))
    assert asked(changes) == {"dan": figures(1, 9.0), "cho": figures(3, 0.25), "bob": NOBODY}
    assert (changes.joining, changes.leaving) == (1, 1)
    assert str(changes) == "1 joined, 1 left, 1 ask for something else"
    assert now(after) == table
    # The registry of the stream stays as it began.
    assert after.registry().fingerprint == registry_of(FIRST).fingerprint
    back, changes = after.changed_to(registry_of(FIRST))
    assert asked(changes) == {"bob": figures(7, 2.0), "cho": figures(3, 0.5), "dan": NOBODY}
    assert back.users.to_pylist() == list(FIRST)  # who came later and left is forgotten
    assert now(back) == FIRST


# Two rows that exchange their users change two requirements.
def test_an_exchange_of_users_is_two_changes():
    users = UserTable.begin(registry_of(FIRST))
    _, changes = users.changed_to(registry_of({**FIRST, "ann": (3, 0.5), "cho": (7, 1.0)}))
    assert asked(changes) == {"ann": figures(3, 0.5), "cho": figures(7, 1.0)}


def test_who_is_missing_has_the_default_requirement():
    users = UserTable.begin(registry_of(FIRST, DEFAULT))
    after, changes = users.changed_to(registry_of({"ann": (7, 1.0)}, DEFAULT))
    assert asked(changes) == {user: figures(2, 0.25) for user in ("bob", "cho")}
    assert changes.leaving == 2
    _, changes = after.changed_to(registry_of({}, DEFAULT))
    assert asked(changes) == {"ann": figures(2, 0.25)}


@pytest.mark.parametrize("other", [None, (DEFAULT[0], 41), (Requirement(3, 0.25), 40)])
def test_the_default_requirement_stays(other):
    users = UserTable.begin(registry_of(FIRST, DEFAULT))
    with pytest.raises(
        ConfigurationError, match=r"2,0.25,40 .* \(--default_requirement, --budget\)"
    ):
        users.changed_to(registry_of(FIRST, other))


def test_a_number_that_was_left_out_does_not_change_with_the_table():
    unsaid = (DEFAULT[0], None)
    users = UserTable.begin(registry_of(FIRST, unsaid))
    _, changes = users.changed_to(registry_of({f"u{i}": (3, 0.5) for i in range(1100)}, unsaid))
    assert changes.joining == 1100
    with pytest.raises(ConfigurationError, match=r"2,0.25 in this stream, and 2,0.25,1000 now"):
        users.changed_to(registry_of(FIRST, (DEFAULT[0], 1000)))


@pytest.mark.parametrize("default", [None, DEFAULT, (Requirement(7, 1.0), 2), (DEFAULT[0], None)])
def test_the_file_keeps_all_of_it_for_its_owner(tmp_path, default):
    begun = UserTable.begin(registry_of(FIRST, default))
    users, _ = begun.changed_to(registry_of({"ann": (7, 3.0), "dan": (5, 0.1)}, default))
    path = tmp_path / "users.parquet"
    users.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = UserTable.read(path)
    assert read.users.to_pylist() == [*FIRST, "dan"]
    assert now(read) == {"ann": (7, 3.0), "dan": (5, 0.1)}
    assert (read.default, read.longest_window) == (default, None)
    registry = read.registry(path)
    assert registry.fingerprint == registry_of(FIRST, default).fingerprint
    # A worker reads it again.
    loaded = registry.reload()
    assert loaded.fingerprint == registry.fingerprint
    assert pickle.loads(pickle.dumps(registry)).fingerprint == registry.fingerprint


def limited(*limits):
    return Registry.build(
        [*FIRST], np.full(3, 30), np.ones(3), max_slots=np.array(limits, np.int64)
    )


def test_limits_on_presence_are_kept_and_compared(tmp_path):
    users = UserTable.begin(limited(2, 0, 3))
    path = tmp_path / "users.parquet"
    users.write(path)
    read = UserTable.read(path)
    assert read.registry(path).fingerprint == limited(2, 0, 3).fingerprint
    assert not read.changed_to(limited(2, 0, 3))[1]
    after, changes = read.changed_to(limited(2, 1, 3))
    assert changes.users.to_pylist() == ["bob"]
    assert after.now.max_slots.tolist() == [2, 1, 3]


def test_a_table_that_knows_of_no_limits_is_read(tmp_path):
    path = tmp_path / "users.parquet"
    UserTable.begin(registry_of(FIRST)).write(path)
    old = pq.read_table(path).drop_columns(["max_slots_begun", "max_slots_now"])
    pq.write_table(old, path)
    assert UserTable.read(path).registry().fingerprint == registry_of(FIRST).fingerprint


# Nothing walks over users: this would take minutes otherwise.
def test_many_users_are_compared_column_by_column():
    n = 200_000
    ids = pa.array(np.arange(n).astype(str))
    first = Registry.build(ids, np.full(n, 7), np.ones(n))
    users = UserTable.begin(first)
    more = pa.array(np.arange(5, n + 5).astype(str))
    epsilons = np.ones(n)
    epsilons[7] = 2.0
    after, changes = users.changed_to(Registry.build(more, np.full(n, 7), epsilons))
    assert str(changes) == "5 joined, 5 left, 1 ask for something else"
    assert len(after.users) == n + 5
    assert changes.batch(3).num_rows == 11
