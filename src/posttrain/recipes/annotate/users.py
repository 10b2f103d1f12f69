"""List, invite, disable or enable users.

posttrain annotate users
posttrain annotate users --invite annotator --project helpful --uses 3
posttrain annotate users --disable ann
"""

from dataclasses import dataclass
from typing import Any

from posttrain.annotation.store import people, projects
from posttrain.annotation.store.database import open_store
from posttrain.errors import UserError
from posttrain.recipes.annotate.forms import Users


@dataclass(frozen=True)
class UsersResult:
    """Everybody, and a link if one was made."""

    users: list[dict[str, Any]]
    link: str

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {"users": self.users, "link": self.link or None}

    def lines(self) -> list[str]:
        """The same for people."""
        found = [
            f"{user['name']}  {user['role']}{', locked out' if user['disabled'] else ''}, since {user['created'][:10]}"
            for user in self.users
        ]
        return [*(found or ["nobody yet"]), *([f"link: {self.link}"] if self.link else [])]


def run(config: Users) -> UsersResult:
    """Do what was asked, then list."""
    if config.invite and config.invite not in people.ROLES:
        raise UserError(f"--invite must be annotator or manager; got '{config.invite}'")
    if config.project and not config.invite:
        raise UserError("--project is the project of an invitation; pass --invite annotator too")
    if config.uses < 1 or not config.days > 0:
        raise UserError(f"--uses must be 1 or more and --days above 0; got {config.uses} and {config.days}")
    link = ""
    with open_store(config.store).write() as connection:
        for name, disabled in ((config.disable, True), (config.enable, False)):
            if name:
                people.lock(connection, name, disabled)
        if config.invite:
            project = projects.find(connection, config.project).id if config.project else None
            secret = people.invite(connection, config.invite, project=project, uses=config.uses, days=config.days)
            link = f"{config.url.rstrip('/')}/invite/{secret}"
        users = [
            {"name": user.name, "role": user.role, "created": user.created, "disabled": user.disabled}
            for user in people.everybody(connection)
        ]
    return UsersResult(users, link)
