"""Statistics that are kept up to date are those that are read anew, and a judgement costs its own item alone."""

import random
import threading

import pytest
from sqlalchemy import select

from posttrain.annotation import agreement
from posttrain.annotation.store import project_statistics, projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import StatisticsCache, statistics_of
from posttrain.annotation.store.tables import Assignment, Item, User
from tests.annotation.worlds import add_project, add_user, completions, item

PEOPLE = ("ann", "ben", "cat", "dan")


def rank(draws):
    order = draws.sample(range(3), 3)
    failed = [order.pop()] if draws.random() < 0.2 else []
    return {"ranking": [order[:2], order[2:]] if draws.random() < 0.3 else [[one] for one in order], "failed": failed}


def thumbs(draws):
    good = [number for number in range(3) if draws.random() < 0.6]
    return {"good": good, "bad": [number for number in range(3) if number not in good]}


def steps(draws):
    return {"wrong": draws.choice([None, 0, 1, 2])}


KINDS = {"rank": rank, "thumbs": thumbs, "steps": steps}


def items_of(kind, names, expected=None):
    if kind != "steps":
        return [item(name, expected=expected) for name in names]
    return [item(name, expected=expected, completions=completions("one\ntwo\nthree")) for name in names]


def sent(draws):
    return f"sending {draws.getrandbits(60)}"


def judge(store, draws, kind, user):
    """The next item of somebody, or one that they have judged once more; sometimes they skip it."""
    with store.write() as connection:
        project = projects.find(connection, "helpful")
        given = work.next_for(connection, project, user)
        done = [one for one in work.mine(connection, project, user) if one.state == "done"]
        if given is None or (done and draws.random() < 0.25):
            given = draws.choice(done) if done else None
        if given is None:
            return
        if given.state == "open" and draws.random() < 0.1:
            work.skip(connection, given, "unclear")
            return
        version = len(given.judgements)
        answer, seconds = KINDS[kind](draws), draws.uniform(1, 60)
        work.answer(connection, given, answer, sending=sent(draws), version=version, seconds=seconds)


def rule(store, draws, kind, boss):
    with store.write() as connection:
        found = connection.get_one(Item, draws.randint(1, 9))
        work.rule(
            connection,
            found,
            connection.get_one(User, boss.id),
            KINDS[kind](draws),
            sending=sent(draws),
            version=len(found.rulings),
        )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_is_read_anew(store, kind, monkeypatch):
    """Judgements, corrections, repeats, skips, known answers and decisions, in any order."""
    draws = random.Random(kind)
    monkeypatch.setattr(work.random, "random", lambda: 0.0)  # every draw hands out the item whose answer is known
    known = items_of(kind, ["known"], KINDS[kind](draws))
    plain = items_of(kind, [f"q{n}" for n in range(9)])
    add_project(store, items=[*plain, *known], kind=kind, annotators_per_item=3, repeat_share=0.3)
    users = [add_user(store, name, "helpful") for name in PEOPLE]
    boss, cache = add_user(store, "boss", role="manager"), StatisticsCache()
    for turn in range(90):
        judge(store, draws, kind, draws.choice(users))
        if turn > 20 and draws.random() < 0.2:
            try:
                rule(store, draws, kind, boss)
            except Refused:
                continue
        if turn % 7 == 0:
            with store.read() as connection:
                cache.read(connection, projects.find(connection, "helpful"))
    with store.read() as connection:
        project = projects.find(connection, "helpful")
        found, anew = cache.read(connection, project), statistics_of(connection, project)
    assert found == anew
    assert any(one.repeats[1] for one in found.work.values()) and any(one.checks[1] for one in found.work.values())
    assert found.alpha is not None and len(found.annotators) == 4


def test_a_new_judgement_measures_its_own_item_alone(store, monkeypatch):
    add_project(store, items=6, annotators_per_item=2)
    ann, ben = (add_user(store, name, "helpful") for name in ("ann", "ben"))
    draws, measured, cache = random.Random(0), [], StatisticsCache()
    shares = agreement.shares
    monkeypatch.setattr(agreement, "shares", lambda *said: measured.append(said) or shares(*said))
    monkeypatch.setattr(project_statistics, "FREE", 1e9)  # read anew each time, however long it takes

    def read():
        with store.read() as connection:
            return cache.read(connection, projects.find(connection, "helpful"))

    for user in (ann, ben):
        for _ in range(4):
            judge(store, draws, "rank", user)
    read()
    before = len(measured)
    assert read() == read() and len(measured) == before > 1
    judge(store, draws, "rank", ben)
    read()
    assert len(measured) == before + 1


def test_of_several_readers_one_measures(store, monkeypatch):
    add_project(store, items=4, annotators_per_item=1)
    ann = add_user(store, "ann", "helpful")
    for _ in range(4):
        judge(store, random.Random(1), "rank", ann)
    cache, measured, found = StatisticsCache(), [], []
    shares = agreement.shares
    monkeypatch.setattr(agreement, "shares", lambda *said: measured.append(said) or shares(*said))

    def read():
        with store.read() as connection:
            found.append(cache.read(connection, projects.find(connection, "helpful")))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(one == found[0] for one in found)
    assert len(measured) == sum(one.done for one in found[0].work.values()) > 0


def test_projects_are_kept_apart(store):
    for name in ("helpful", "other"):
        add_project(store, name, items=2, annotators_per_item=1)
    ann = add_user(store, "ann", "helpful")
    cache = StatisticsCache()
    judge(store, random.Random(2), "rank", ann)
    cache.warm(store)
    with store.read() as connection:
        helpful, other = (cache.read(connection, projects.find(connection, name)) for name in ("helpful", "other"))
    assert helpful.work["ann"].done == 1 and other.work == {} and other.annotators == []


def test_a_large_projects_statistics_are_kept_for_a_while_but_not_beyond_a_decision(store, monkeypatch):
    monkeypatch.setattr(project_statistics, "FREE", -1.0)
    monkeypatch.setattr(project_statistics, "REST", 1e9)
    add_project(store, items=9, annotators_per_item=1)
    ann, boss = add_user(store, "ann", "helpful"), add_user(store, "boss", role="manager")
    draws, cache = random.Random(3), StatisticsCache()

    def done():
        judge(store, draws, "rank", ann)
        with store.read() as connection:
            return cache.read(connection, projects.find(connection, "helpful"))

    first = done()
    assert done() is first
    with store.read() as connection:
        number = connection.scalars(select(Item.id).join(Assignment).where(Assignment.state == "done")).first()
    with store.write() as connection:
        found, user = connection.get_one(Item, number), connection.get_one(User, boss.id)
        work.rule(connection, found, user, rank(draws), sending="a decision", version=0)
    decided = done()
    assert decided is not first and decided.work["ann"].done > first.work["ann"].done and done() is decided
    cache._projects[1]._until = 0.0
    assert done() is not decided
