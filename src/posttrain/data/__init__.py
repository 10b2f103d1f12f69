"""Data: conversations, datasets, chat templates and packing, up to token ids with a loss mask."""

from posttrain.data.chat import ChatFormat
from posttrain.data.demonstrations import load_demonstrations
from posttrain.data.digests import digest_of_rows
from posttrain.data.gym import load_gym
from posttrain.data.heldout import disjoint, divide, hold_out, met_before, question_of, split
from posttrain.data.loaded import load_texts
from posttrain.data.mixtures import split_for
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example, Graded, Pair, pack
from posttrain.data.preferences import judged_of, judgements_of, load_judgements, load_preferences, pair_of
from posttrain.data.ratings import graded_of, load_ratings
from posttrain.data.records import Record
from posttrain.data.sources import in_memory, load_rows, parse_columns, read_rows
from posttrain.data.tasks import load_completions, load_tasks
from posttrain.data.tokenizer import ChatTokenizer, ending_at_stop, load_tokenizer, save_for_scores

__all__ = [
    "ChatFormat",
    "ChatTokenizer",
    "Example",
    "Graded",
    "Pair",
    "Record",
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
    "question_of",
    "read_rows",
    "save_for_scores",
    "seed_for",
    "split",
    "split_for",
]
