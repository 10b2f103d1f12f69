"""Loading plain text for pretraining losses."""

from collections.abc import Mapping

from posttrain.data.given import Source
from posttrain.data.loaded import Loaded
from posttrain.data.mixtures import mix
from posttrain.data.sources import read_rows


def load_texts(
    source: Source,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Loaded[str]:
    """The texts of a data set: the field `text` of each row.

    Args:
        source: a file, folder, hub id, or the rows themselves (see `load_rows`), or a mixture of them (see `mixtures`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most texts, from the first.
        seed: which rows of a mixture are repeated.

    Raises:
        DataError: as `load_rows`, or a row without text, by file, line and field.
    """
    found = Loaded[str]()

    def load(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> list[str]:
        return found.usable(read_rows(part, split=split, columns=columns, limit=limit), lambda row: [row.text("text")])

    found += mix(source, load, columns=columns, limit=limit, seed=seed)
    return found
