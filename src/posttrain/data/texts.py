"""Loading plain text for pretraining losses."""

from typing import Unpack

from posttrain.data.given import Source
from posttrain.data.loaded import Loaded, Reading, read_all


def load_texts(source: Source, **reading: Unpack[Reading]) -> Loaded[str]:
    """The texts of a data set: the field `text` of each row. Arguments are those of `read_all`.

    Raises:
        DataError: as `load_rows`, or a row without text, by file, line and field.
    """
    return read_all(source, lambda row: [row.text("text")], **reading)
