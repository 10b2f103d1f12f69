"""Projects, their items, and progress."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.database import record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Item, Member, Project
from posttrain.annotation.store.work import asked
from posttrain.annotation.task_kinds import KINDS, NoAnswer, instructions, storable

MOST_ANNOTATORS = 100


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


def add_items(connection: Connection, project: Project, items: Sequence[Item], *, by: int | None = None) -> int:
    """Add items; those of a name that is there already are left as they are. Returns how many are new.

    Raises:
        Refused: an item has fewer or more completions than the project's kind can show, or letters that no store keeps.
        NoAnswer: an expected answer is none.
    """
    there = set(connection.scalars(select(Item.name).where(Item.project_id == project.id)))
    kind = KINDS[project.kind]
    low, high = kind.completions
    new = [item for item in items if item.name not in there]
    named = [item.name for item in new]
    if len(set(named)) < len(named):
        raise Refused(f"two items have the name '{next(name for name in named if named.count(name) > 1)}'")
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
    record(connection, by, "add items", project.name, items=len(new))
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
    done, whole = connection.execute(select(func.sum(times), func.sum(case((times == wanted, 1), else_=0)))).one()
    skipped = connection.scalar(plain.where(Assignment.state == "skipped")) or 0
    members = connection.scalar(select(func.count()).where(Member.project_id == project.id)) or 0
    items = every - known
    return Progress(items, known, items * wanted, int(done or 0), int(whole or 0), skipped, members)


def everything(connection: Connection) -> list[Project]:
    """All projects, the oldest first."""
    return list(connection.scalars(select(Project).order_by(Project.id)))
