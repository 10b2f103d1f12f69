"""Where annotators do not agree, and what a manager decides there; the decision is then what they say together."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation import agreement
from posttrain.annotation.aggregation import majority
from posttrain.annotation.consensus import agree, settle
from posttrain.annotation.kinds import KINDS, Answer
from posttrain.annotation.rankings import by_item
from posttrain.annotation.store import exports
from posttrain.annotation.store.database import one_by_one, record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Item, Project, Ruling, User
from posttrain.annotation.store.work import Changed, asked


def decidable(project: Project) -> bool:
    """Whether annotators can disagree: where everybody writes or talks on their own, they cannot."""
    kind = KINDS[project.kind]
    return kind.ranking is not None or kind.verdict is not None


def rule(
    connection: Connection, item: Item, user: User, sent: Mapping[str, Any], *, sending: str, version: int
) -> Ruling:
    """Keep what a manager decides: the first decision on an item, or one that corrects it.

    Args:
        connection: within a write.
        item: what it is about.
        user: the manager.
        sent: the answer, as an annotator would give it.
        sending: a name that the page made up for this sending; if it is known, what was kept then is returned.
        version: how many decisions the page knew of.

    Raises:
        Refused: there is nothing to decide in projects of this kind, or nobody has judged the item.
        NoAnswer: it does not answer the question.
        Changed: there is a decision that the page did not know of.
    """
    project = connection.get_one(Project, item.project_id)
    if not decidable(project):
        raise Refused("here everybody gives an answer of their own, and there is nothing to decide")
    one_by_one(connection, project.id)
    connection.refresh(item, ["rulings"])
    if (known := connection.scalar(select(Ruling).where(Ruling.sent == sending))) is not None:
        if known.item_id != item.id:
            raise Refused("this was sent already, for another item")
        if KINDS[project.kind].check(sent, asked(project, item)) != known.answer:
            raise Changed("another decision was kept for this page; load it again to see and change that one")
        return known
    if item.name not in {judged.item.name for judged in exports.done(connection, project)}:
        raise Refused("nobody has judged this yet")
    answer = KINDS[project.kind].check(sent, asked(project, item))
    if version != len(item.rulings):
        raise Changed("somebody has decided this since the page was opened; load it again to see how")
    ruling = Ruling(user_id=user.id, version=version + 1, answer=answer, sent=sending)
    item.rulings.append(ruling)
    record(connection, user.id, "rule", f"item {item.id}", version=version + 1, answer=answer)
    connection.flush()
    return ruling


class Disputed(NamedTuple):
    """An item on which annotators do not agree."""

    item: Item
    agreement: float  # Kendall's W, or the share of those who say what most say
    decided: str  # by whom; "" while nobody has


def disputed(connection: Connection, project: Project) -> list[Disputed]:
    """What annotators do not agree on: what nobody has decided first, and then where they agree least."""
    alike = KINDS[project.kind].alike
    found: dict[str, float] = {}
    if alike is not None:
        answers: dict[str, list[Answer]] = {}
        for one in exports.first(connection, project):
            answers.setdefault(one.item.name, []).append(one.judgements[-1].answer)
        found = {item: alike(mine) for item, mine in answers.items()}
    else:
        for item, mine in by_item(exports.rankings(connection, project)).items():
            found |= {str(item): w for w in [agreement.kendall_w(mine)] if w is not None}
    items = {item.name: item for item in exports.items(connection, project)}
    rows = [
        Disputed(items[name], share, items[name].rulings[-1].user.name if items[name].rulings else "")
        for name, share in found.items()
        if share < 1
    ]
    return sorted(rows, key=lambda row: (bool(row.decided), row.agreement))


class Agreement(NamedTuple):
    """How far the annotators of a project agree."""

    alpha: float | None
    kendall_w: float | None
    annotators: list[agreement.Annotator]


def agreed(connection: Connection, project: Project) -> Agreement:
    """Measure it, on orders where the project's kind says one, else on verdicts; nothing for kinds that say neither.

    What was decided is what an annotator is compared with, also in place of what the others say.
    """
    kind = KINDS[project.kind]
    if kind.ranking is None:
        said = exports.verdicts(connection, project)
        decided = {
            name: kind.verdict(answer) for name, answer in exports.rulings(connection, project).items() if kind.verdict
        }
        alpha = agreement.nominal_alpha(list(_by_item(said).values()))
        return Agreement(alpha, None, agreement.by_verdicts(said, decided))
    rankings, decisions = exports.rankings(connection, project), exports.decided(connection, project)
    together = settle(agree(rankings, majority.beliefs(rankings)), decisions)
    people = agreement.annotators(rankings, together, majority.beliefs, decisions, item_by_item=True)
    return Agreement(agreement.alpha(rankings), agreement.mean_kendall_w(rankings), people)


def _by_item(said: Sequence[tuple[str, str, Hashable]]) -> dict[str, list[Hashable]]:
    found: dict[str, list[Hashable]] = {}
    for item, _, value in said:
        found.setdefault(item, []).append(value)
    return found


def said_of(connection: Connection, project: Project, item: Item) -> list[tuple[str, str]]:
    """What each annotator says of an item, and what was decided: a name, and the answer in words."""
    words = KINDS[project.kind].words
    if words is None:
        return []
    said = [one for one in exports.done(connection, project) if one.item_id == item.id and not one.repeat]
    found = [(one.user.name, words(one.judgements[-1].answer)) for one in said]
    return [*found, *((f"{one.user.name}, who decides", words(one.answer)) for one in item.rulings[-1:])]
