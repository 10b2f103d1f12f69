"""What people have said: progress, users, export, backup, consensus. Each returns its lines, and its answer as JSON.

    posttrain annotate status --project helpful --json
    posttrain annotate users --invite annotator --project helpful --uses 3
    posttrain annotate users --disable ann

    posttrain annotate export --project helpful --to pairs --output pairs.jsonl
    posttrain reward-model --dataset pairs.jsonl

    posttrain annotate backup --store annotation.db --output /backups/annotation-monday.db
    posttrain annotate consensus judgements.jsonl --method plackett-luce --json

`export --wait 0.9` first waits until nine of ten items have all their annotations (docs/pipelines.md: rounds).
`export --history` adds what was corrected later, and what was said of items that came a second time. `--to pairs`,
judgements, ratings, steps or demonstrations writes what people say together, to learn from.

A backup is safe while the server runs, and has every judgement that was acknowledged before it began; a copy of the
database file by other means lacks those that are still in the log beside it. To restore, stop the server, remove
annotation.db-wal and annotation.db-shm, and put the copy in place of annotation.db. A PostgreSQL database is backed up
by pg_dump.

`consensus` needs no database, but one judgement a line: `{"item": "q1", "annotator": "ann", "ranking": [[1], [0], [2]],
"failed": []}`, completions by their number, groups of equally good ones, best first.
"""

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain.annotation import agreement
from posttrain.annotation.aggregation import METHODS, method
from posttrain.annotation.rankings import agree, load_rankings
from posttrain.annotation.store import people, projects
from posttrain.annotation.store.database import Connection, Store, back_up, open_store
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.annotation.store.tables import Project
from posttrain.annotation.training_rows import LESSONS
from posttrain.errors import UserError, unknown
from posttrain.options.services import Backup, Consensus, Export, Status, Users
from posttrain.runs import jsonl
from posttrain.runs.progress import announce

SHOWN = 20  # items of a consensus in the table for people
POLL_S = 2.0  # between two looks at the annotations that are waited for

Said = tuple[list[str], dict[str, Any]]


def status(config: Status) -> Said:
    """Counts, agreement, and how many disputed items nobody has decided, of all projects that are asked for."""
    with open_store(config.store).read() as connection:
        chosen = [projects.find(connection, config.project)] if config.project else projects.everything(connection)
        found: list[dict[str, Any]] = []
        for project in chosen:
            together = statistics_of(connection, project)
            counts = {"kind": project.kind, **projects.progress(connection, project)._asdict()}
            agreed = {"alpha": together.alpha, "kendall_w": together.kendall_w}
            disputed = sum(not one.decided for one in together.disputes)
            found.append({"project": project.name, **counts, **agreed, "disputed": disputed})
    lines = [
        f"{one['project']}: {one['judged']} of {one['wanted']} judgements, {one['whole']} of {one['items']} items "
        f"whole, {one['skipped']} skipped, {one['annotators']} people, alpha {_shown(one['alpha'])}, "
        f"W {_shown(one['kendall_w'])}, {one['disputed']} disputed"
        for one in found
    ]
    return lines or ["no project yet"], {"projects": found}


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def users(config: Users) -> Said:
    """Invite, disable or enable whoever is named; then list everybody."""
    if config.invite and config.invite not in people.ROLES:
        raise UserError(f"--invite must be annotator or manager; got '{config.invite}'")
    if config.project and not config.invite:
        raise UserError("--project is the project of an invitation; pass --invite annotator too")
    link = ""
    with open_store(config.store).write() as connection:
        for name, disabled in ((config.disable, True), (config.enable, False)):
            if name:
                people.lock(connection, name, disabled)
        if config.invite:
            project = projects.find(connection, config.project).id if config.project else None
            secret = people.invite(connection, config.invite, project=project, uses=config.uses, days=config.days)
            link = f"{config.url.rstrip('/')}/invite/{secret}"
        names = ("name", "role", "created", "disabled")
        found = [{name: getattr(user, name) for name in names} for user in people.everybody(connection)]
    lines = [
        f"{user['name']}  {user['role']}{', locked out' if user['disabled'] else ''}, since {user['created'][:10]}"
        for user in found
    ]
    return [*(lines or ["nobody yet"]), *([f"link: {link}"] if link else [])], {"users": found, "link": link or None}


def export(config: Export, *, quiet: bool = False) -> Said:
    """Wait where that is asked for, then write the file; it is there when all of it is, or not at all."""
    path = jsonl.new_file(config.output)
    if not config.project:
        raise UserError("--project is required; posttrain annotate status lists the projects")
    if config.to != "rows" and config.to not in LESSONS:
        raise unknown("layout", config.to, ["rows", *LESSONS])
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    if config.history and config.to != "rows":
        raise UserError("--history needs --to rows")
    store = open_store(config.store)
    if config.wait:
        _wait(store, config, quiet)
    with store.read() as connection:
        count = jsonl.write(path, _rows(connection, projects.find(connection, config.project), config))
    return [f"{count:,} rows in {path}"], {"path": path, "rows": count}


def _wait(store: Store, config: Export, quiet: bool) -> None:
    """Wait for people, as long as it takes; another layout than the project's kind makes is refused before that."""
    before, serve = None, f"posttrain annotate serve --store {shlex.quote(store.name)}"
    with store.read() as connection:
        _rows(connection, projects.find(connection, config.project), config)
    while True:
        with store.read() as connection:
            now = projects.progress(connection, projects.find(connection, config.project))
        if not now.items:
            raise UserError(f"the project '{config.project}' has no items to wait for; type: posttrain annotate import")
        if now.whole / now.items >= config.wait:
            return
        if now != before:
            judged = f"{now.judged} of {now.wanted} annotations, {now.annotators} people"
            said = f"{now.whole} of {now.items} items annotated ({judged}); waiting for {config.wait:.0%}"
            announce(f"{said}; serve with: {serve}", quiet=quiet)
        before = now
        time.sleep(POLL_S)


def _rows(connection: Connection, project: Project, config: Export) -> Iterator[dict[str, Any]]:
    if config.to == "rows":
        return projects.rows(connection, project, history=config.history)
    lesson = LESSONS[config.to]
    if project.kind not in lesson:
        fitting = [name for name, other in LESSONS.items() if project.kind in other]
        raise UserError(
            f"a project of the kind '{project.kind}' makes no {config.to}; type --to {' or '.join(fitting)}"
        )
    rows = lesson[project.kind](projects.told(connection, project), config.method)
    return (row | {"project": project.name} for row in rows)


def backup(config: Backup) -> Said:
    """Write the file; it is there when all of it is, or not at all."""
    name = f"{Path(config.store.rpartition('/')[2]).stem}-{datetime.now():%Y%m%d-%H%M%S}.db"
    path = Path(config.output or name).expanduser()
    judgements = back_up(config.store, path)
    return [f"{judgements:,} judgements in {path}, integrity checked"], {"path": path, "judgements": judgements}


def consensus(config: Consensus) -> Said:
    """One ranking of each item, and how far annotators agree."""
    if not config.file:
        raise UserError("a file of annotations is required: posttrain annotate consensus FILE.jsonl")
    beliefs = method(config.method)
    rankings = load_rankings(config.file)
    agreed = agree(rankings, beliefs(rankings))
    annotators = agreement.annotators([agreement.shares(rankings, agreed, beliefs)])
    alpha, kendall_w = agreement.alpha(rankings), agreement.mean_kendall_w(rankings)
    lines: list[str] = []
    for one in agreed[:SHOWN]:
        order = " > ".join(" = ".join(map(str, group)) for group in one.order)
        lines.append(f"{one.item}: {order}" + (f"; failed: {', '.join(map(str, one.failed))}" if one.failed else ""))
    if len(agreed) > SHOWN:
        lines.append(f"and {len(agreed) - SHOWN:,} more; --json has all")
    lines += ["", f"Krippendorff's alpha {_shown(alpha)}, Kendall's W {_shown(kendall_w)}"]
    for one in annotators:
        agrees = f"agrees with the consensus in {_shown(one.agreement)} of {one.comparisons:,} comparisons"
        lines.append(f"{one.annotator}: {'NOISY: ' if one.noisy else ''}{agrees}, {one.evidence}")
    items: list[dict[str, Any]] = []
    for one in agreed:
        items.append({name: getattr(one, name) for name in ("item", "order", "pairs", "failed")})
        if strengths := one.belief.strengths:
            items[-1]["strengths"] = {str(i): value for i, value in sorted(strengths.items())}
            items[-1]["standard_errors"] = {str(i): value for i, value in sorted(one.belief.errors.items())}
    return lines, {
        "method": config.method,
        "items": items,
        "annotators": [asdict(one) | {"evidence": one.evidence} for one in annotators],
        "alpha": alpha,
        "kendall_w": kendall_w,
    }
