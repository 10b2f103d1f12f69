"""Database schema. A change needs a step in `migrations/versions` for stores that are there; a test compares the two.

Times are UTC in ISO 8601, with milliseconds: the same in every database, and in order as text. Nothing is deleted, and
what somebody said is never changed: a correction is another row.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


def now() -> str:
    """The current time in storage format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Base(DeclarativeBase):
    """All tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, list[int]: JSON, list[dict[str, str]]: JSON}


class Numbered(Base):
    """A table whose rows are known by their number."""

    __abstract__ = True
    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class User(Numbered):
    """A user: annotator or manager."""

    __tablename__ = "users"
    name: Mapped[str] = mapped_column(String(80), unique=True)
    role: Mapped[str] = mapped_column(String(20))  # annotator or manager
    password: Mapped[str] = mapped_column(String(200))  # scrypt, with its salt and cost
    created: Mapped[str] = mapped_column(String(32), default=now)
    disabled: Mapped[bool] = mapped_column(default=False)


class Session(Numbered):
    """A login session."""

    __tablename__ = "sessions"
    digest: Mapped[str] = mapped_column(String(64), unique=True)  # SHA-256 of the cookie, which is nowhere else
    csrf: Mapped[str] = mapped_column(String(64))
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    created: Mapped[str] = mapped_column(String(32), default=now)
    expires: Mapped[str] = mapped_column(String(32))
    user: Mapped[User] = relationship(lazy="joined")


class Invite(Numbered):
    """An invitation link."""

    __tablename__ = "invites"
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(20))
    project_id: Mapped[int | None] = mapped_column(ForeignKey("projects.id"))
    uses_left: Mapped[int]  # how many may still come by it
    created_by: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    created: Mapped[str] = mapped_column(String(32), default=now)
    expires: Mapped[str] = mapped_column(String(32))
    bootstrap: Mapped[bool] = mapped_column(default=False, server_default=false())
    """For the first manager: it ends when there is one."""


class Project(Numbered):
    """One kind of question, with its instructions, asked of some people about some items."""

    __tablename__ = "projects"
    name: Mapped[str] = mapped_column(String(80), unique=True)
    kind: Mapped[str] = mapped_column(String(20))
    instructions: Mapped[str] = mapped_column(Text)
    annotators_per_item: Mapped[int]
    repeat_share: Mapped[float]  # of an annotator's items, those that come a second time
    settings: Mapped[dict[str, Any]]
    created: Mapped[str] = mapped_column(String(32), default=now)
    turn: Mapped[int] = mapped_column(default=0)  # incremented at each assignment, to serialise them


class Member(Base):
    """Membership of users in projects."""

    __tablename__ = "members"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    joined: Mapped[str] = mapped_column(String(32), default=now)


class Item(Numbered):
    """An annotation item: a prompt, and its completions."""

    __tablename__ = "items"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        Index("items_to_give", "project_id", "given", "priority"),
    )
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(200))  # as the data calls it
    prompt: Mapped[list[dict[str, str]]]  # messages
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)  # whatever else came with it
    expected: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # the answer, where it is known
    priority: Mapped[float] = mapped_column(default=0.0)  # the higher, the sooner
    given: Mapped[int] = mapped_column(default=0)  # to how many annotators it is, or was and is judged
    completions: Mapped[list["Completion"]] = relationship(order_by="Completion.number", lazy="selectin")
    rulings: Mapped[list["Ruling"]] = relationship(order_by="Ruling.version")

    @property
    def about(self) -> str:
        """The prompt; for conversations, the topic, which the model does not see."""
        if self.prompt and self.prompt[-1]["role"] == "user":
            return self.prompt[-1]["content"]
        return str(self.details.get("topic") or self.name)


class Completion(Numbered):
    """One of the completions of an item."""

    __tablename__ = "completions"
    __table_args__ = (UniqueConstraint("item_id", "number"),)
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), index=True)
    number: Mapped[int]
    text: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(String(200), default="")  # hidden from annotators
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)


class Assignment(Numbered):
    """An item assigned to an annotator."""

    __tablename__ = "assignments"
    __table_args__ = (
        UniqueConstraint("item_id", "user_id", "repeat"),
        Index("assignments_of", "user_id", "state"),
    )
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"))
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    repeat: Mapped[bool] = mapped_column(default=False)  # they have judged it before
    shown: Mapped[list[int]]  # numbers of the completions, in the order in which they stand on the page
    state: Mapped[str] = mapped_column(String(10), default="open")  # open, done, skipped, lapsed
    reason: Mapped[str] = mapped_column(Text, default="")  # why it was skipped
    given: Mapped[str] = mapped_column(String(32), default=now)
    item: Mapped[Item] = relationship(lazy="joined")
    user: Mapped[User] = relationship()
    turns: Mapped[list["Turn"]] = relationship(order_by="Turn.number", back_populates="assignment")
    judgements: Mapped[list["Judgement"]] = relationship(order_by="Judgement.version", lazy="selectin")


class Judgement(Numbered):
    """An annotator's answer; the highest version is current."""

    __tablename__ = "judgements"
    __table_args__ = (UniqueConstraint("assignment_id", "version"),)
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignments.id"))
    version: Mapped[int]
    answer: Mapped[dict[str, Any]]
    seconds: Mapped[float]  # during which the page was before their eyes
    sent: Mapped[str] = mapped_column(String(64), unique=True)  # which sending of a page this is: sent twice, kept once
    said: Mapped[str] = mapped_column(String(32), default=now)


class Turn(Numbered):
    """Of a conversation with a model: what the annotator says, and two replies to it."""

    __tablename__ = "turns"
    __table_args__ = (UniqueConstraint("assignment_id", "number"),)
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignments.id"))
    number: Mapped[int]  # from 0
    message: Mapped[str] = mapped_column(Text)
    sent: Mapped[str] = mapped_column(String(64), unique=True)  # as a judgement's
    replies: Mapped[list[dict[str, str]] | None] = mapped_column(JSON(none_as_null=True))  # text, model, stop; none yet
    shown: Mapped[list[int]]  # numbers of the replies, 2 * number and the next, in the order of the page
    taken: Mapped[int | None]  # the reply with which the conversation went on, when it has
    said: Mapped[str] = mapped_column(String(32), default=now)
    replied: Mapped[str | None] = mapped_column(String(32))
    assignment: Mapped[Assignment] = relationship(back_populates="turns")


class Ruling(Numbered):
    """A manager's ruling on an item with disagreement; the highest version is current."""

    __tablename__ = "rulings"
    __table_args__ = (UniqueConstraint("item_id", "version"),)
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"))
    version: Mapped[int]
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    answer: Mapped[dict[str, Any]]
    sent: Mapped[str] = mapped_column(String(64), unique=True)  # as a judgement's
    said: Mapped[str] = mapped_column(String(32), default=now)
    user: Mapped[User] = relationship()


class Event(Numbered):
    """Audit log: a row for every write."""

    __tablename__ = "audit"
    at: Mapped[str] = mapped_column(String(32), default=now)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    action: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(String(200))
    details: Mapped[dict[str, Any]]
