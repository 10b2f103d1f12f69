"""The body of POST /v1/jobs. Fields that it does not have are refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.errors import UserError
from posttrain.serving.answers import first_mistake

Name = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, strict=True)]


class Body(BaseModel):
    """Nothing is ignored: a misspelt field would be a job with another meaning."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Rows(Body):
    """Data that is sent with the job: rows as of a JSONL file."""

    rows: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1_000_000)]


class Named(Body):
    """Data of the operator's, by name."""

    name: Name


class Verifier(Body):
    """A reward that posttrain has, by name."""

    verifier: Name
    weight: Weight = 1.0


class Remote(Body):
    """A reward behind an HTTP address."""

    url: Annotated[str, Field(max_length=2000)]
    weight: Weight = 1.0


class Source(Body):
    """A reward as Python source; for keys that are trusted."""

    file: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "reward"
    weight: Weight = 1.0


Reward = Verifier | Remote | Source
Data = Rows | Named


class Submitted(Body):
    """A job as its client asks for it."""

    command: Literal["rl", "sft", "preference", "reward-model"]
    model: Name
    dataset: Data
    eval_dataset: Data | None = None
    reward: Reward | Annotated[list[Reward], Field(min_length=1, max_length=8)] | None = None
    options: Annotated[dict[str, Any], Field(max_length=64)] = {}
    knobs: Annotated[dict[str, Any], Field(max_length=64)] = {}

    @property
    def rewards(self) -> list[Reward]:
        """The rewards; none where there is none."""
        if self.reward is None:
            return []
        return self.reward if isinstance(self.reward, list) else [self.reward]


def submitted(body: bytes) -> Submitted:
    """What a client asks for; raises `UserError`, which names the field."""
    try:
        return Submitted.model_validate_json(body)
    except ValidationError as error:
        raise UserError(first_mistake(error)[:500]) from error
