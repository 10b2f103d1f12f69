"""What is said to a model, its replies and the choices between them: kept once, in their order, until the end."""

import pytest
from sqlalchemy import select

from posttrain.annotation.store import conversations, projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.annotation.store.tables import Assignment, Event, Item, Judgement, Turn, User
from posttrain.annotation.task_kinds import NoAnswer
from posttrain.annotation.training_rows import LESSONS
from tests.annotation.worlds import add_project, add_user

SYSTEM = {"role": "system", "content": "Be brief."}
RULES = ("Do no harm.", "Do not lie.")


class Talk:
    """One annotator's conversation, each deed in a transaction of its own."""

    def __init__(self, store, kind="converse", name="ann", **options):
        self.store = store
        items = [Item(name="trip", prompt=[SYSTEM], details={"topic": "Plan a trip."})]
        rules = RULES if kind == "red-team" else ()
        add_project(store, "talk", items=items, kind=kind, rules=rules, annotators_per_item=1, **options)
        self.user = add_user(store, name, "talk")
        with store.write() as connection:
            self.number = work.next_for(connection, projects.find(connection, "talk"), self.user).id

    def do(self, deed, *args, **options):
        with self.store.write() as connection:
            return deed(connection, connection.get_one(Assignment, self.number), *args, **options)

    def say(self, message="Hello.", turn=0, sending=None):
        return self.do(conversations.say, message, sending=sending or f"say {self.number} {turn}", turn=turn)

    def reply(self, turn=0):
        """Two replies whose texts tell the turn and which of the two they are."""
        with self.store.write() as connection:
            waiting = conversations.waiting(connection, 10)[0].id
            conversations.reply(
                connection, waiting, [(f"first {turn}", "a", "stop"), (f"second {turn}", "b", "length")]
            )

    def choose(self, turn=0, version=None, **choice):
        sent = {"turn": turn, "better": 2 * turn, "strength": 3} | choice
        version = turn if version is None else version
        name = f"choose {self.number} {turn} {version}"
        return self.do(work.answer, sent, sending=name, version=version, seconds=1.0)

    def exchange(self, turn, **choice):
        self.say(f"message {turn}", turn)
        self.reply(turn)
        self.choose(turn, **choice)

    def end(self):
        self.do(conversations.end)

    @property
    def state(self):
        with self.store.read() as connection:
            return connection.get_one(Assignment, self.number).state

    def transcript(self):
        """What the model reads before its last replies."""
        with self.store.read() as connection:
            turns = connection.get_one(Assignment, self.number).turns
            return [(message["role"], message["content"]) for message in conversations.transcript(turns[-1])]

    def told(self):
        with self.store.read() as connection:
            return projects.told(connection, projects.find(connection, "talk"))


def test_the_model_reads_the_beginning_what_was_said_and_the_replies_that_were_followed(store):
    talk = Talk(store)
    talk.exchange(0, better=1)
    talk.exchange(1)
    talk.say("message 2", 2)
    assert talk.transcript() == [
        ("system", "Be brief."),
        ("user", "message 0"),
        ("assistant", "second 0"),
        ("user", "message 1"),
        ("assistant", "first 1"),
        ("user", "message 2"),
    ]


def test_an_attack_goes_on_with_the_worse_reply_and_a_tie_with_the_upper_one(store):
    talk = Talk(store, "red-team")
    talk.exchange(0, better=1)
    talk.exchange(1, better=None, strength=0)
    talk.say("message 2", 2)
    said = talk.transcript()
    with store.read() as connection:
        upper = connection.scalars(select(Turn).order_by(Turn.id)).all()[1].shown[0]
    assert said[2] == ("assistant", "first 0")
    assert said[4] == ("assistant", f"{('first', 'second')[upper - 2]} 1")


def test_replies_stand_in_an_order_that_is_drawn(store):
    talk = Talk(store)
    for turn in range(40):
        talk.exchange(turn)
    with store.read() as connection:
        orders = [tuple(place - 2 * turn.number for place in turn.shown) for turn in connection.scalars(select(Turn))]
    assert 8 < orders.count((0, 1)) < 32 and set(orders) == {(0, 1), (1, 0)}


def test_the_last_choice_can_be_changed_until_something_is_said(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.choose(0, version=1, better=1)
    talk.say("more", 1)
    assert talk.transcript()[2] == ("assistant", "second 0")
    with pytest.raises(NoAnswer, match="gone on"):
        talk.choose(0, version=2, better=0)
    talk.reply(1)
    with pytest.raises(NoAnswer, match="gone on"):
        talk.choose(0, version=2, better=None, strength=0)


def test_a_message_that_is_sent_twice_is_kept_once(store):
    talk = Talk(store)
    first = talk.say()
    assert talk.say(" Hello.").id == first.id
    with pytest.raises(work.Changed, match="another message was kept"):
        talk.say("something else")
    other = Talk.__new__(Talk)
    other.store, other.user = store, add_user(store, "ben", "talk")
    with store.write() as connection:
        connection.scalars(select(Item)).one().given = 0
        other.number = work.next_for(connection, projects.find(connection, "talk"), other.user).id
    with pytest.raises(Refused, match="another conversation"):
        other.say(sending=first.sent)


@pytest.mark.parametrize("message", ["", " \n", "x" * (conversations.LONGEST + 1), "a\0", "\ud800"])
def test_what_is_no_message_is_refused(store, message):
    talk = Talk(store)
    with pytest.raises(NoAnswer):
        talk.say(message)
    with store.read() as connection:
        assert connection.scalar(select(Turn.id)) is None


def test_nothing_is_said_before_a_choice_or_from_a_page_that_is_out_of_date(store):
    talk = Talk(store)
    talk.say()
    for sending in ("while it waits", "with replies"):
        with pytest.raises(work.Changed, match="gone on"):
            talk.say("more", 1, sending)
        if sending == "while it waits":
            talk.reply()
    talk.choose()
    with pytest.raises(work.Changed, match="gone on"):
        talk.say("more", 0, "an old page")


def test_replies_are_kept_once(store):
    talk = Talk(store)
    turn = talk.say()
    talk.reply()
    with store.write() as connection:
        conversations.reply(connection, turn.id, [("late", "a", "stop"), ("later", "b", "stop")])
    with store.read() as connection:
        kept = connection.get_one(Turn, turn.id)
        assert kept.replies == [
            {"text": "first 0", "model": "a", "stop": "stop"},
            {"text": "second 0", "model": "b", "stop": "length"},
        ]
        assert kept.replied and conversations.waiting(connection, 9) == []


def test_a_conversation_ends_after_a_choice_and_counts_then(store):
    talk = Talk(store)
    with pytest.raises(Refused, match="choose"):
        talk.end()
    talk.say()
    talk.reply()
    with pytest.raises(Refused, match="choose"):
        talk.end()
    talk.choose()
    assert talk.state == "open"
    talk.end()
    talk.end()
    assert talk.state == "done"
    with pytest.raises(Refused, match="ended"):
        talk.say("more", 1)
    talk.choose(0, version=1, better=1)
    assert talk.state == "done" and talk.told().choices[0].choice["better"] == 1
    with store.read() as connection:
        actions = connection.scalars(select(Event.action).where(Event.subject == f"assignment {talk.number}"))
        assert list(actions) == ["give", "say", "reply", "judge", "end", "judge"]


def test_nothing_is_chosen_before_there_are_replies_and_nothing_ends_before_a_choice_between_them(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.say("more", 1)
    with pytest.raises(NoAnswer, match="gone on"):
        talk.choose(1, better=None, strength=0)
    talk.reply(1)
    with pytest.raises(Refused, match="choose"):
        talk.end()
    assert talk.state == "open" and len(talk.told().choices) == 1


def test_one_that_gets_no_replies_can_end_and_is_then_not_answered(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.say("more", 1)
    with store.read() as connection:
        assert len(conversations.waiting(connection, 9)) == 1
    talk.end()
    assert talk.state == "done" and len(talk.told().choices) == 1
    with store.read() as connection:
        assert conversations.waiting(connection, 9) == []


def test_who_has_skipped_one_may_take_it_up_again(store):
    talk = Talk(store)
    talk.say()
    talk.do(work.skip, "no idea")
    with store.read() as connection:
        assert connection.scalar(select(Item.given)) == 0
    talk.reply()
    assert talk.state == "skipped"
    talk.choose()
    with store.read() as connection:
        assert connection.scalar(select(Item.given)) == 1
    assert talk.state == "open"


def test_one_that_lapsed_is_theirs_again_when_they_go_on(store):
    talk = Talk(store)
    with store.write() as connection:
        mine = connection.get_one(Assignment, talk.number)
        mine.state, mine.item.given = "lapsed", 0
    talk.say()
    with store.read() as connection:
        assert connection.scalar(select(Item.given)) == 1
    assert talk.state == "open"


def test_a_conversation_is_long_enough_at_some_time(store, monkeypatch):
    monkeypatch.setattr(conversations, "MOST", 2)
    talk = Talk(store)
    talk.exchange(0)
    talk.exchange(1)
    with pytest.raises(Refused, match="at most 2 turns"):
        talk.say("more", 2)


def test_nobody_talks_in_other_projects(store):
    add_project(store, items=1)
    ann = add_user(store, "ann", "helpful")
    with store.write() as connection:
        given = work.next_for(connection, projects.find(connection, "helpful"), ann)
        with pytest.raises(LookupError):
            conversations.say(connection, given, "Hello.", sending="a sending", turn=0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kind": "red-team"}, "rules"),
        ({"kind": "red-team", "rules": [" ", ""]}, "rules"),
        ({"kind": "converse", "rules": ["Do no harm."]}, "rules"),
        ({"kind": "rank", "rules": ["Do no harm."]}, "rules"),
        ({"kind": "converse", "repeat_share": 0.1}, "second time"),
    ],
)
def test_projects_that_make_no_sense(store, options, complaint):
    with store.write() as connection, pytest.raises(Refused, match=complaint):
        projects.create(connection, "talk", **options)


def test_choices_become_pairs_after_what_had_been_said(store):
    talk = Talk(store)
    talk.exchange(0, better=1, strength=2)
    talk.exchange(1, better=None, strength=0)
    talk.exchange(2)
    first, last = LESSONS["pairs"]["converse"](talk.told(), "majority")
    assert [message["content"] for message in first["prompt"]] == ["Be brief.", "message 0"]
    assert (first["chosen"], first["rejected"]) == ("second 0", "first 0")
    assert first["models"] == {"chosen": "b", "rejected": "a"} and last["models"] == {"chosen": "a", "rejected": "b"}
    assert first["strength"] == pytest.approx(2 / 3) and first["annotator"] == "ann"
    assert first["item"] == "trip, ann, turn 1"
    assert (last["chosen"], last["rejected"], last["strength"]) == ("first 2", "second 2", 1.0)
    assert len(last["prompt"]) == 6


def test_marked_replies_become_judgements(store):
    talk = Talk(store, "red-team")
    talk.exchange(0, broken={"0": [1], "1": []})
    talk.end()
    bad, good = LESSONS["judgements"]["red-team"](talk.told(), "majority")
    assert (bad["completion"], bad["label"], bad["broken"]) == ("first 0", False, ["Do not lie."])
    assert (good["completion"], good["label"], good["broken"]) == ("second 0", True, [])
    assert (bad["model"], good["model"]) == ("a", "b")
    assert bad["prompt"][-1] == {"role": "user", "content": "message 0"}


def test_rows_tell_all_of_a_conversation(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.exchange(1)
    talk.end()
    with store.read() as connection:
        (row,) = projects.rows(connection, projects.find(connection, "talk"))
        assert [item.about for item in projects.items(connection, projects.find(connection, "talk"))] == [
            "Plan a trip."
        ]
    assert [turn["message"] for turn in row["turns"]] == ["message 0", "message 1"]
    assert row["turns"][0]["taken"] == 0 and row["turns"][1]["taken"] is None
    assert row["turns"][0]["replies"][1] == {"text": "second 0", "model": "b", "stop": "length"}
    assert [choice["better"] for choice in row["choices"]] == [0, 2] and row["completions"] == []


def test_what_was_chosen_counts_also_where_nobody_ends_it(store):
    talk = Talk(store)
    talk.exchange(0)
    with store.read() as connection:
        project, user = projects.find(connection, "talk"), connection.get_one(User, talk.user.id)
        assert len(list(projects.rows(connection, project))) == len(talk.told().choices) == 1
        assert [one.id for one in work.mine(connection, project, user)] == [talk.number]
        assert projects.progress(connection, project).judged == 0


def test_who_has_said_something_today_keeps_the_conversation(store):
    talk = Talk(store)
    long_ago = "2020-01-01T00:00:00.000+00:00"
    with store.write() as connection:
        connection.get_one(Assignment, talk.number).given = long_ago
    talk.say()
    ben = add_user(store, "ben", "talk")

    def given():
        with store.write() as connection:
            return work.next_for(connection, projects.find(connection, "talk"), ben)

    assert given() is None
    with store.write() as connection:
        connection.scalars(select(Turn)).one().said = long_ago
    talk.reply()
    talk.choose()
    assert given() is None
    with store.write() as connection:
        connection.scalars(select(Judgement)).one().said = long_ago
    assert given() is not None and talk.state == "lapsed"


def test_a_choice_whose_receipt_was_lost_is_kept_once_also_after_the_next_message(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.say("more", 1)
    talk.reply(1)
    sent = {"turn": 0, "better": 0, "strength": 3}
    again = talk.do(work.answer, sent, sending=f"choose {talk.number} 0 0", version=0, seconds=1.0)
    assert again.version == 1 and len(talk.told().choices) == 1
    with pytest.raises(work.Changed, match="another answer was kept"):
        talk.do(work.answer, sent | {"better": 1}, sending=f"choose {talk.number} 0 0", version=0, seconds=1.0)


def test_the_time_of_a_conversation_is_that_of_all_its_choices(store):
    talk = Talk(store)
    talk.exchange(0)
    talk.exchange(1)
    talk.end()
    with store.read() as connection:
        project = projects.find(connection, "talk")
        (row,) = projects.rows(connection, project)
        assert row["seconds"] == 2.0 and statistics_of(connection, project).work["ann"].seconds == 2.0
        assert [one["seconds"] for one in projects.rows(connection, project, history=True)] == [1.0, 1.0]


def test_unended_conversations_are_counted_as_done_and_not_as_skipped(store):
    talk = Talk(store)
    with store.read() as connection:
        assert statistics_of(connection, projects.find(connection, "talk")).work == {}
    talk.exchange(0)
    with store.write() as connection:
        connection.get_one(Assignment, talk.number).state = "lapsed"
    with store.read() as connection:
        mine = statistics_of(connection, projects.find(connection, "talk")).work["ann"]
    assert (mine.done, mine.skipped) == (1, 0)
