"""Projects, their items, progress, and exports: a row for each judgement, and answers to train on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.conversations import reply_of, transcript
from posttrain.annotation.store.database import record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Item, Member, Project, Ruling
from posttrain.annotation.store.work import asked, choices, done
from posttrain.annotation.task_kinds import KINDS, Answer, NoAnswer, instructions, storable
from posttrain.annotation.training_rows import Choice, Told

MOST_ANNOTATORS = 100
TURN = ("message", "replies", "shown", "taken", "said", "replied")  # of a turn, what is exported


def create(
    connection: Connection,
    name: str,
    kind: str = "rank",
    *,
    text: str = "",
    annotators_per_item: int = 3,
    repeat_share: float = 0.0,
    attributes: Sequence[str] = (),
    rules: Sequence[str] = (),
    by: int | None = None,
) -> Project:
    """Make a project; raises `Refused` for a name that is taken or empty, or numbers that make no sense."""
    name = name.strip()
    if not name or len(name) > 80:
        raise Refused("a project's name has 1 to 80 letters")
    if kind not in KINDS:
        raise Refused(f"there is no kind '{kind}'; there are: {', '.join(KINDS)}")
    if not 1 <= annotators_per_item <= MOST_ANNOTATORS:
        raise Refused(f"an item goes to 1 to {MOST_ANNOTATORS} annotators; got {annotators_per_item}")
    if not 0 <= repeat_share <= 0.5:
        raise Refused(f"the share of items that come a second time is 0 to 0.5; got {repeat_share}")
    if connection.scalar(select(Project.id).where(Project.name == name)) is not None:
        raise Refused(f"there is a project '{name}' already")
    if kind == "score" and not attributes:
        attributes = ("helpful", "correct", "clear")
    words = all(0 < len(one) <= 40 and one.replace("-", "").replace("_", "").isalnum() for one in attributes)
    if attributes and (kind != "score" or len(set(attributes)) < len(attributes) or not words):
        raise Refused("attributes are for the kind 'score': words of up to 40 letters, each once")
    rules = [rule.strip() for rule in rules if rule.strip()]
    if (kind == "red-team") != bool(rules):
        raise Refused(
            "a red team needs rules to break, one a line (on the command line: `rules=FILE`); other kinds have none"
        )
    if KINDS[kind].goes_on and repeat_share:
        raise Refused("a conversation does not come a second time; leave the share of repeated items at 0")
    project = Project(
        name=name,
        kind=kind,
        instructions=text.strip() or instructions(kind),
        annotators_per_item=annotators_per_item,
        repeat_share=repeat_share,
        settings={"attributes": list(attributes), "rules": rules},
    )
    connection.add(project)
    connection.flush()
    record(connection, by, "create project", name, kind=kind, annotators_per_item=annotators_per_item)
    return project


def find(connection: Connection, name: str) -> Project:
    """The project of this name; raises `Refused` if there is none."""
    project = connection.scalar(select(Project).where(Project.name == name))
    if project is None:
        there = ", ".join(f"'{known}'" for known in connection.scalars(select(Project.name).order_by(Project.id)))
        raise Refused(f"there is no project '{name}'; there are: {there or 'none'}")
    return project


def kind_of(connection: Connection, name: str) -> str:
    """What people do in the project of this name; "" if there is none."""
    return connection.scalar(select(Project.kind).where(Project.name == name)) or ""


def names_of_items(connection: Connection, name: str) -> set[str]:
    """The names of a project's items; none if there is no project of this name."""
    asked = select(Item.name).join(Project, Item.project_id == Project.id).where(Project.name == name)
    return set(connection.scalars(asked))


def add_items(connection: Connection, project: Project, items: Sequence[Item]) -> int:
    """Add items; those of a name that is there already are left as they are. Returns how many are new.

    Raises `Refused` for an item that the project's kind cannot show, and `NoAnswer` where what it expects is no answer.
    """
    there = set(connection.scalars(select(Item.name).where(Item.project_id == project.id)))
    kind = KINDS[project.kind]
    low, high = kind.completions
    new = [item for item in items if item.name not in there]
    if twice := [name for name, times in Counter(item.name for item in new).items() if times > 1]:
        raise Refused(f"two items have the name '{twice[0]}'")
    for item in new:
        if not low <= len(item.completions) <= high:
            has = f"item '{item.name}' has {len(item.completions)} completions"
            raise Refused(f"{has}; to {kind.says} there must be {low} to {high}, given in the data or sampled")
        try:
            prompt = (said["content"] for said in item.prompt)
            completions = (word for one in item.completions for word in (one.text, one.model or ""))
            for word in (item.name, *prompt, *completions):
                storable(word)
        except NoAnswer as problem:
            raise Refused(f"item {item.name!a}: {problem}") from problem
        if item.expected:
            item.expected = kind.check(item.expected, asked(project, item))
        item.project_id = project.id
    connection.add_all(new)
    record(connection, None, "add items", project.name, items=len(new))
    return len(new)


class Progress(NamedTuple):
    """Progress of a project."""

    items: int
    known: int  # items besides, whose answer is known
    wanted: int  # judgements
    judged: int  # of those wanted
    whole: int  # items that have all of theirs
    skipped: int
    annotators: int


def progress(connection: Connection, project: Project) -> Progress:
    """Count it; an item that comes a second time counts once, and one whose answer is known does not count."""
    here, wanted = Item.project_id == project.id, project.annotators_per_item
    every, known = connection.execute(select(func.count(Item.id), func.count(Item.expected)).where(here)).one()
    plain = select(func.count().label("times")).select_from(Assignment).join(Assignment.item)
    plain = plain.where(here, Item.expected.is_(None))
    judged = plain.where(Assignment.state == "done", ~Assignment.repeat).group_by(Assignment.item_id).subquery()
    times = case((judged.c.times > wanted, wanted), else_=judged.c.times)
    judgements, whole = connection.execute(select(func.sum(times), func.sum(case((times == wanted, 1), else_=0)))).one()
    skipped = connection.scalar(plain.where(Assignment.state == "skipped")) or 0
    members = connection.scalar(select(func.count()).where(Member.project_id == project.id)) or 0
    items = every - known
    return Progress(items, known, items * wanted, int(judgements or 0), int(whole or 0), skipped, members)


def everything(connection: Connection) -> list[Project]:
    """All projects, the oldest first."""
    return list(connection.scalars(select(Project).order_by(Project.id)))


def items(connection: Connection, project: Project) -> Sequence[Item]:
    """All of them, in the order in which they were added."""
    return connection.scalars(select(Item).where(Item.project_id == project.id).order_by(Item.id)).all()


def rulings(connection: Connection, project: Project) -> dict[str, Answer]:
    """By an item's name what a manager has decided, as it holds now."""
    query = select(Item.name, Ruling.answer).join(Ruling, Ruling.item_id == Item.id)
    query = query.where(Item.project_id == project.id).order_by(Ruling.version)
    return {row.name: row.answer for row in connection.execute(query)}


def rows(connection: Connection, project: Project, *, history: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each judgement, with all that is known of how it came about.

    `history` adds what was corrected later, and what was said of an item that came a second time.
    """
    decisions, talk = rulings(connection, project), KINDS[project.kind].goes_on is not None
    for one in done(connection, project):
        if one.repeat and not history:
            continue
        for said in one.judgements if history else one.judgements[-1:]:
            yield {
                "project": project.name,
                "kind": project.kind,
                "item": one.item.name,
                "annotator": one.user.name,
                **said.answer,
                "prompt": one.item.prompt,
                "completions": [
                    {"text": completion.text, "model": completion.model, **completion.details}
                    for completion in one.item.completions
                ],
                **({"turns": [{name: getattr(turn, name) for name in TURN} for turn in one.turns]} if talk else {}),
                "shown": one.shown,
                "repeat": one.repeat,
                "check": one.item.expected is not None,
                "ruling": decisions.get(one.item.name),
                "version": said.version,
                "sent": said.sent,
                # how long the last version took, or of a conversation all choices
                "seconds": sum(v.seconds for v in one.judgements) if talk and not history else said.seconds,
                "given": one.given,
                "time": said.said,
                "details": one.item.details,
            }


def told(connection: Connection, project: Project) -> Told:
    """Answers for training: what annotators say now of items that they met for the first time, checks left out."""
    said = [one for one in done(connection, project) if not one.repeat and one.item.expected is None]
    return Told(
        project.kind,
        {item.name: item for item in items(connection, project)},
        [(one.item.name, one.user.name, one.judgements[-1].answer) for one in said],
        [choice for one in said for choice in _choices(one)],
        project.settings.get("rules", ()),
        rulings(connection, project),
    )


def _choices(assignment: Assignment) -> Iterator[Choice]:
    """Each turn of a conversation that has a choice, with what the model had read."""
    who = assignment.user.name
    for turn, choice in zip(assignment.turns, choices(assignment), strict=False):
        replies = {number: reply_of(turn, number) for number in sorted(turn.shown)}
        name = f"{assignment.item.name}, {who}, turn {turn.number + 1}"
        yield Choice(name, who, transcript(turn), replies, choice)
