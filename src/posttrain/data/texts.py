"""Plain text from any source, as pretraining has it."""

from collections.abc import Mapping

from posttrain.data.sources import read_rows


def load_texts(
    source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[str]:
    """The texts of a data set: the field `text` of each row.

    Args:
        source: a file, folder or hub id (see `load_rows`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most texts, from the first.

    Raises:
        DataError: as `load_rows`, or a row without text, by file, line and field.
    """
    return [row.text("text") for row in read_rows(source, split=split, columns=columns, limit=limit)]
