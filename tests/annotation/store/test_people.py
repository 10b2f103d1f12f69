"""Who comes in, by what, and what the database knows of their secrets."""

import pytest
from sqlalchemy import select, text

from posttrain.annotation.store import people
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Base, Event, Invite, Member, Session, User
from tests.annotation.worlds import PASSWORD, add_project, add_user

KEPT = people.sealed(PASSWORD)


def test_an_invitation_makes_a_member_as_often_as_it_says(store):
    project = add_project(store)
    with store.write() as connection:
        secret = people.invite(connection, "annotator", project=project.id, uses=2)
    with store.write() as connection:
        ann = people.accept(connection, secret, " ann ", KEPT)
        assert (ann.name, ann.role) == ("ann", "annotator")
        assert connection.get(Member, (project.id, ann.id)) is not None
    with store.write() as connection:
        people.accept(connection, secret, "ben", KEPT)
    with store.write() as connection:
        assert people.invitation(connection, secret) is None
        with pytest.raises(Refused, match="not good any more"):
            people.accept(connection, secret, "cat", KEPT)


def test_an_invitation_that_is_old_or_guessed_is_none(store):
    with store.write() as connection:
        old, good = (people.invite(connection, "manager", days=days) for days in (-1, 1))
        assert people.invitation(connection, old) is None
        assert people.invitation(connection, good[:-1]) is None and people.invitation(connection, "") is None
        assert people.invitation(connection, good).role == "manager"


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("", PASSWORD, "a name has"),
        ("a" * 81, PASSWORD, "a name has"),
        ("<b>", PASSWORD, "a name has"),
        ("a\nb", PASSWORD, "a name has"),
        ("ben", "short", "at least 8"),
        ("Ann", PASSWORD, "is taken"),
    ],
)
def test_names_and_passwords_that_will_not_do(store, name, password, message):
    add_user(store, "ann")
    with store.write() as connection:
        secret = people.invite(connection, "annotator")
    with pytest.raises(Refused, match=message), store.write() as connection:
        people.accept(connection, secret, name, people.sealed(password))
    with store.read() as connection:
        assert people.invitation(connection, secret) is not None  # it was not used up


def test_a_password_lets_its_user_in_and_nobody_else(store):
    add_user(store, "ann")
    with store.write() as connection:
        assert people.known(connection, "ANN", PASSWORD).name == "ann"
        assert people.known(connection, "ann", PASSWORD + "x") is None
        assert people.known(connection, "ben", PASSWORD) is None
        assert people.known(connection, "ben", "") is None
        people.lock(connection, "ann", True)
        assert people.known(connection, "ann", PASSWORD) is None
        people.lock(connection, "ann", False)
        assert people.known(connection, "ann", PASSWORD) is not None
        with pytest.raises(Refused, match="there is no user 'ben'; there are: ann"):
            people.lock(connection, "ben", True)


def test_a_session_lasts_until_it_is_left_expires_or_its_user_is_locked_out(store):
    ann = add_user(store, "ann")
    with store.write() as connection:
        first, second, old = (people.enter(connection, ann, days=days) for days in (1, 1, -1))
    with store.read() as connection:
        assert people.session(connection, first).user.name == "ann"
        assert people.session(connection, first).csrf != people.session(connection, second).csrf
        assert people.session(connection, old) is None and people.session(connection, "guess") is None
    with store.write() as connection:
        people.leave(connection, first)
    with store.write() as connection:
        assert people.session(connection, first) is None
        people.lock(connection, "ann", True)
    with store.read() as connection:
        assert people.session(connection, second) is None


def test_no_secret_is_in_the_database(store):
    ann = add_user(store, "ann")
    with store.write() as connection:
        secret, entry = people.invite(connection, "annotator"), people.enter(connection, ann)
    with store.read() as connection:
        everything = "".join(
            str(connection.execute(text(f"SELECT * FROM {table.name}")).all()) for table in Base.metadata.sorted_tables
        )
    assert not any(word in everything for word in (secret, entry, PASSWORD))
    with store.read() as connection:
        assert connection.scalar(select(User.password)).startswith("scrypt$")
        assert len(connection.scalar(select(Session.digest))) == len(connection.scalar(select(Invite.digest))) == 64


def test_two_of_the_same_password_are_kept_differently(store):
    assert add_user(store, "ann").password != add_user(store, "ben").password


def test_who_is_there_joins_another_project_once(store):
    first, second = add_project(store, "first"), add_project(store, "second")
    ann = add_user(store, "ann", "first")
    with store.write() as connection:
        secret = people.invite(connection, "annotator", project=second.id, uses=2)
    for _ in range(2):
        with store.write() as connection:
            people.join(connection, secret, ann)
    with store.read() as connection:
        assert people.invitation(connection, secret).uses_left == 1
        assert {connection.get(Member, (p.id, ann.id)) is not None for p in (first, second)} == {True}


def test_who_is_there_takes_a_higher_role_and_never_a_lower_one(store):
    project = add_project(store)
    ann = add_user(store, "ann")
    with store.write() as connection:
        higher = people.invite(connection, "manager")
        lower = people.invite(connection, "annotator", project=project.id, uses=2)
        useless = people.invite(connection, "annotator")
    for secret in (higher, higher, lower, useless):
        with store.write() as connection:
            if people.invitation(connection, secret) is None:
                with pytest.raises(Refused, match="not good any more"):
                    people.join(connection, secret, ann)
            else:
                people.join(connection, secret, ann)
    with store.read() as connection:
        assert connection.get_one(User, ann.id).role == "manager"
        assert connection.get(Member, (project.id, ann.id)) is not None
        assert people.invitation(connection, higher) is None  # used up by the first time
        assert people.invitation(connection, useless).uses_left == 1
        told = select(Event.action).where(Event.user_id == ann.id).order_by(Event.id)
        assert list(connection.scalars(told)) == ["accept", "accept", "join"]


def test_every_write_is_in_the_audit(store):
    ann = add_user(store, "ann", add_project(store).name)
    with store.write() as connection:
        entry = people.enter(connection, ann)
        people.leave(connection, entry)
        people.lock(connection, "ann", True)
    with store.read() as connection:
        actions = list(connection.scalars(select(Event.action).order_by(Event.id)))
    assert actions == ["create project", "add items", "invite", "accept", "join", "enter", "leave", "lock"]


def test_names_in_other_letters_are_found_whatever_their_case(store):
    add_user(store, "Émile Þór")
    with store.write() as connection:
        assert people.known(connection, "émile þÓR", PASSWORD) is not None
        people.lock(connection, "ÉMILE ÞÓR", True)


def test_an_invitation_for_the_first_manager_ends_when_there_is_one_and_each_start_ends_the_one_before(store):
    with store.write() as connection:
        old = people.bootstrap_invitation(connection)
        named = people.invite(connection, "manager")  # by an operator, for somebody else
    with store.write() as connection:
        first, second = people.bootstrap_invitation(connection), people.invite(connection, "annotator")
        assert people.invitation(connection, old) is None and people.invitation(connection, first) is not None
    with store.write() as connection:
        people.accept(connection, named, "boss", KEPT)
        assert people.invitation(connection, first) is None and people.invitation(connection, second) is not None
        assert people.bootstrap_invitation(connection) == ""
        ended = connection.scalars(select(Event.details).where(Event.action == "end invitations"))
        assert [len(one["invites"]) for one in ended] == [1, 1]


@pytest.mark.parametrize("way", ["join", "enable"])
def test_it_ends_with_every_way_to_become_a_manager(store, way):
    ann = add_user(store, "ann", role="manager" if way == "enable" else "annotator")
    with store.write() as connection:
        promoted = people.invite(connection, "manager")
        if way == "enable":
            people.lock(connection, "ann", True)
        first = people.bootstrap_invitation(connection)
        assert people.invitation(connection, first) is not None
        if way == "enable":
            people.lock(connection, "ann", False)
        else:
            people.join(connection, promoted, ann)
        assert people.invitation(connection, first) is None


def test_sessions_of_before_end_with_an_invitation_and_with_a_lock(store):
    ann, ben = add_user(store, "ann"), add_user(store, "ben")
    with store.write() as connection:
        promoted, again = people.invite(connection, "manager"), people.invite(connection, "annotator")
        old, others = people.enter(connection, ann), people.enter(connection, ben)
        assert people.join(connection, promoted, ann)
        assert people.session(connection, old) is None
        new = people.enter(connection, ann)
        assert not people.join(connection, again, ann)  # which has nothing for them
        assert people.session(connection, new) is not None
        people.lock(connection, "ann", True)
        people.lock(connection, "ann", False)
        assert people.session(connection, new) is None
        assert people.session(connection, others) is not None
