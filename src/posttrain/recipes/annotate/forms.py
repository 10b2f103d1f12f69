"""The options of `posttrain annotate`. Nothing here needs the packages of its extra, so that --help does not either."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import tyro

FILE = "annotation.db"


@dataclass(frozen=True)
class Serve:
    """Serve the pages on which people judge."""

    store: str = FILE
    """Where what they say is kept: a file or a URL. An SQLite file, made if it is not there, or a database URL such
    as postgresql+psycopg://HOST/NAME."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 for all of this machine's."""
    port: int = 8400
    """The port to listen at."""
    url: str = ""
    """Public base URL of the pages, for links of invitations. Such as https://feedback.example; its host is added
    to the allowed Host headers. Default: http://localhost:PORT."""
    https: bool = False
    """Set if a reverse proxy terminates TLS: cookies are marked Secure."""
    proxies: str = ""
    """Addresses of trusted reverse proxies, comma-separated. Each must overwrite X-Forwarded-For, since a client can
    send any value."""
    model: str = ""
    """One model or two, space-separated, that people chat with. In projects of the kinds converse and red-team; of
    one, both replies are sampled. Hub ids, folders, runs, packaged models."""
    max_new_tokens: int = 256
    """Tokens of the longest reply."""
    temperature: float = 1.0
    """Sampling temperature."""
    precision: str = "auto"
    """float32, bfloat16, or auto, which takes the faster one."""
    cache_gb: float = 1.0
    """Memory for keys and values while sampling, of each model."""


@dataclass(frozen=True)
class Import:
    """Put items before people: prompts with completions, given or sampled."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns limit",
        "sampling": "models completions max_new_tokens temperature",
        "project": "store project kind attributes annotators_per_item repeat_share rules instructions",
        "run": "seed",
    }
    store: str = FILE
    """Where what people say is kept."""
    project: str = ""
    """The project to add them to; it is made if it is not there."""
    dataset: str = ""
    """Prompts, with completions unless --models samples them. A file, folder, glob or hub id."""
    kind: str = "rank"
    """What people do in a new project. One of rank, compare, thumbs, score, steps, demonstrate, converse and
    red-team."""
    attributes: str = ""
    """What is scored in a new project of kind score. With spaces between them."""
    annotators_per_item: int = 3
    """People who judge an item, in a new project."""
    repeat_share: float = 0.0
    """Share of a person's items that come twice. In a project that is made."""
    rules: str = ""
    """File of rules to make the model break, in a new red-team project. One a line."""
    instructions: str = ""
    """File of instructions in Markdown, for a new project; unless given, posttrain's own."""
    models: str = ""
    """Models to sample completions from. With spaces between them: hub ids, folders, runs, packaged models."""
    completions: int = 2
    """Completions of each model."""
    max_new_tokens: int = 256
    """Tokens of the longest completion."""
    temperature: float = 1.0
    """Sampling temperature."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    columns: str = ""
    """Columns to read, such as "prompt=question completions=answers"."""
    limit: int | None = None
    """Rows to use, from the first; all unless given."""
    ask: int = 0
    """Add only so many items that are not there yet, those that teach most by --choose; 0: all. Items that are there to
    see who pays attention are always added."""
    choose: str = "random"
    """How they are chosen: random; moved (where the model of --models has moved furthest, in nats); or, by an ensemble,
    disagreement (the variance of how much better it finds one answer) or information (what the comparison is expected
    to tell it, in nats; for calibrated ones)."""
    reward_model: str = ""
    """The ensemble, trained by reward-model --ensemble 5: a run or a folder."""
    kl_from: str = ""
    """For --choose moved: the one model whose answers people have judged before, named as in --models."""
    seed: int = 0
    """Seed of what is sampled, and of what is chosen by chance."""


@dataclass(frozen=True)
class Export:
    """Write what people said to a file."""

    store: str = FILE
    """Where what people say is kept."""
    project: str = ""
    """Whose judgements."""
    output: str = ""
    """The file to write; its name ends with .jsonl."""
    to: str = "rows"
    """What to write: rows, one for each judgement; to learn from: pairs, judgements, ratings, steps or
    demonstrations; or ties, to evaluate with."""
    method: str = "majority"
    """How several judgements become one: majority, or a model. Majority, dawid-skene, bradley-terry or
    plackett-luce."""
    history: bool = False
    """Also what was corrected later, and items that came a second time."""


@dataclass(frozen=True)
class Backup:
    """Copy the store to a file, also while people judge."""

    store: str = FILE
    """Where what people say is kept: an SQLite file."""
    output: str = ""
    """The file to write. Default: the store's name with date and time, in this folder."""


@dataclass(frozen=True)
class Status:
    """How far each project is, and how far people agree."""

    store: str = FILE
    """Where what people say is kept."""
    project: str = ""
    """Only this one."""


@dataclass(frozen=True)
class Users:
    """List users, invite some, or lock one out."""

    store: str = FILE
    """Where what people say is kept."""
    invite: str = ""
    """Make a link for an annotator or a manager."""
    project: str = ""
    """The project that those who come by the link join."""
    uses: int = 1
    """How many may come by the link."""
    days: float = 7.0
    """How long the link is good."""
    url: str = "http://localhost:8400"
    """Where the pages are, for the link."""
    disable: str = ""
    """Lock this user out; what they said stays."""
    enable: str = ""
    """Let this user in again."""


@dataclass(frozen=True)
class Consensus:
    """Make one judgement of many: an order of each item's completions, and how far annotators agree."""

    file: tyro.conf.Positional[str] = ""
    """Judgements: a jsonl or parquet file. With item, annotator, ranking, and failed where there are any."""
    method: str = "majority"
    """How: majority, dawid-skene, bradley-terry or plackett-luce; the last three weigh annotators."""
