"""Data: conversations, datasets, chat templates and packing, up to token ids with a loss mask."""

from posttrain.data.chat import ChatFormat, TrainingIds, TrainOn
from posttrain.data.completions import load_completions
from posttrain.data.demonstrations import load_demonstrations
from posttrain.data.digests import digest_of_rows
from posttrain.data.given import Source
from posttrain.data.gym import load_gym, parse_gym, split_of
from posttrain.data.heldout import Disjoint, disjoint, divide, hold_out, met_before, question_of, split
from posttrain.data.mixtures import split_for
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example, Graded, Labelled, PackedRow, Pair, pack
from posttrain.data.preferences import judged_of, judgements_of, load_judgements, load_preferences, pair_of
from posttrain.data.ratings import graded_of, load_ratings
from posttrain.data.records import Record, parse_columns
from posttrain.data.sources import in_memory, load_rows, read_rows
from posttrain.data.tasks import load_tasks
from posttrain.data.texts import load_texts
from posttrain.data.tokenizer import ChatTokenizer, ending_at_stop, load_tokenizer, save_for_scores

__all__ = [
    "ChatFormat",
    "ChatTokenizer",
    "Disjoint",
    "Example",
    "Graded",
    "Labelled",
    "PackedRow",
    "Pair",
    "Record",
    "Source",
    "TrainOn",
    "TrainingIds",
    "batch_indices",
    "digest_of_rows",
    "disjoint",
    "divide",
    "ending_at_stop",
    "graded_of",
    "hold_out",
    "in_memory",
    "judged_of",
    "judgements_of",
    "load_completions",
    "load_demonstrations",
    "load_gym",
    "load_judgements",
    "load_preferences",
    "load_ratings",
    "load_rows",
    "load_tasks",
    "load_texts",
    "load_tokenizer",
    "met_before",
    "pack",
    "pair_of",
    "parse_columns",
    "parse_gym",
    "question_of",
    "read_rows",
    "save_for_scores",
    "seed_for",
    "split",
    "split_for",
    "split_of",
]
