"""What an option may name: a text, or from Python the object itself. `posttrain.bindings` binds it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from posttrain.options.option import Kind
from posttrain.types import ChatModel, Engine, Frame


class Trained(Protocol):
    """A run, such as what `posttrain.run` returns."""

    @property
    def run(self) -> Path: ...  # noqa: D102


class Hyperparameters(Protocol):
    """A dataclass, such as an algorithm with its hyperparameters."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Rows = Annotated[str | Path | Iterable[Mapping[str, Any]] | Frame, Kind("dataset")]
"""A data set: a source as it is typed, or rows: a list of mappings, a `datasets.Dataset`, a DataFrame."""
Model = Annotated[str | Path | Trained | tuple[Any, Any], Kind("model")]
"""A model: a name, folder or run, or a model in memory with its tokenizer."""
Rewards = Annotated[
    str | Callable[..., Any] | Mapping[str, Any] | Sequence[Callable[..., Any]] | object, Kind("reward")
]
"""Rewards: as they are typed, a table with weights and arguments, a function, or an object that scores."""
Judge = Annotated[str | Mapping[str, str | ChatModel], Kind("judge")]
"""Chat models by name: as they are typed, or objects."""
Environment = Annotated[str | object, Kind("environment")]
"""An environment: a name or FILE.py:CLASS, or an object."""
Algorithm = Annotated[str | Hyperparameters, Kind("algorithm")]
"""An algorithm: a name or FILE.py:CLASS, or an object with its hyperparameters."""
EngineName = Annotated[str | Engine | Callable[..., Engine], Kind("engine")]
"""An engine: a name or addresses, an object, or what makes one from the policy's model and stop tokens."""
