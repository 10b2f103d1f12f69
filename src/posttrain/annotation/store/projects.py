"""Projects, their items, and progress."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.database import record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Completion, Item, Member, Project, User
from posttrain.annotation.task_kinds import KINDS, NoAnswer, Question, instructions, storable

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
    if attributes and (kind != "score" or len(set(attributes)) < len(attributes) or not all(map(_word, attributes))):
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


def _word(attribute: str) -> bool:
    return 0 < len(attribute) <= 40 and attribute.replace("-", "").replace("_", "").isalnum()


def attributes_of(project: Project) -> list[str]:
    """Attributes of a `score` project."""
    return list(project.settings.get("attributes", ()))


def rules_of(project: Project) -> list[str]:
    """Rules of a red-team project."""
    return list(project.settings.get("rules", ()))


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


class NewItem(NamedTuple):
    """An item to add."""

    name: str
    prompt: Sequence[Mapping[str, str]]  # messages
    completions: Sequence[tuple[str, str, Mapping[str, Any]]]  # text, model, and what else is known of each
    details: Mapping[str, Any]
    expected: Mapping[str, Any] | None = None  # its answer, where the item is there to see who pays attention
    priority: float = 0.0


def add_items(connection: Connection, project: Project, items: Sequence[NewItem], *, by: int | None = None) -> int:
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
            completions = (word for text, model, _ in item.completions for word in (text, model))
            for word in (item.name, *prompt, *completions):
                storable(word)
        except NoAnswer as problem:
            raise Refused(f"item {item.name!a}: {problem}") from problem
        texts = {number: text for number, (text, _, _) in enumerate(item.completions)}
        expected = item.expected and kind.check(item.expected, Question(texts, attributes_of(project)))
        connection.add(
            Item(
                project_id=project.id,
                name=item.name,
                prompt=[dict(message) for message in item.prompt],
                details=dict(item.details),
                expected=expected or None,
                priority=item.priority,
                completions=[
                    Completion(number=number, text=text, model=model, details=dict(details))
                    for number, (text, model, details) in enumerate(item.completions)
                ],
            )
        )
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
    plain = (Item.project_id == project.id, Item.expected.is_(None))
    items = connection.scalar(select(func.count()).select_from(Item).where(*plain)) or 0
    done = (
        select(Assignment.item_id, func.count().label("times"))
        .join(Assignment.item)
        .where(*plain, Assignment.state == "done", ~Assignment.repeat)
        .group_by(Assignment.item_id)
        .subquery()
    )
    enough = case((done.c.times > project.annotators_per_item, project.annotators_per_item), else_=done.c.times)
    judged = connection.scalar(select(func.coalesce(func.sum(enough), 0))) or 0
    whole = connection.scalar(select(func.count()).where(done.c.times >= project.annotators_per_item)) or 0
    skipped = select(func.count(Assignment.id)).join(Assignment.item).where(*plain, Assignment.state == "skipped")
    members = (
        select(func.count())
        .select_from(Member)
        .join(User, User.id == Member.user_id)
        .where(Member.project_id == project.id)
    )
    known = select(func.count(Item.id)).where(Item.project_id == project.id, Item.expected.is_not(None))
    return Progress(
        items,
        connection.scalar(known) or 0,
        items * project.annotators_per_item,
        int(judged),
        whole,
        connection.scalar(skipped) or 0,
        connection.scalar(members) or 0,
    )


def everything(connection: Connection) -> list[Project]:
    """All projects, the oldest first."""
    return list(connection.scalars(select(Project).order_by(Project.id)))
