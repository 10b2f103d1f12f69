"""Special tokens in user, tool or system text are encoded as ordinary text.

The text of a conversation is untrusted input: a user who writes `<|im_end|>` must not end a turn. A chat template mixes
that text with its own special tokens, so special tokens in the text are replaced by placeholders before
rendering. The rendering is then encoded by a copy of the tokenizer whose special tokens have other spellings: those of
the template are respelled, those in the text are restored, and the copy encodes them as ordinary text. All else is
encoded as by the tokenizer itself.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, final

from posttrain.errors import TemplateError


@final
class OrdinaryText:
    """Special tokens of one tokenizer, and how to encode text in which some of them are meant as words.

    Args:
        backend: the `tokenizers.Tokenizer` behind a fast tokenizer.
        special: the spellings that are not special where a user, a tool or the system writes them.
    """

    def __init__(self, backend: Any, special: Iterable[str]) -> None:
        self._backend = backend
        longest_first = sorted(set(special), key=len, reverse=True)
        self._number = {text: i for i, text in enumerate(longest_first)}
        self._texts = longest_first
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Unguessable, so that no text can hold a placeholder; letters and digits, which no template escapes.
        self._key = f"q{secrets.token_hex(8)}q"
        self._placeholder = re.compile(f"{self._key}([0-9]+)q")

    def hide(self, text: str) -> str:
        """`text` with a placeholder for each special token in it."""
        return self._special.sub(lambda found: f"{self._key}{self._number[found[0]]}q", text)

    def hide_in(self, value: Any) -> Any:
        """The same of every string in JSON data, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        return [self.hide_in(item) for item in value] if isinstance(value, list) else value

    def show(self, text: str) -> str:
        """Text with its placeholders resolved."""
        return self._placeholder.sub(lambda found: self._texts[int(found[1])], text)

    def is_hidden_in(self, text: str) -> bool:
        """Whether there is a placeholder in it."""
        return self._key in text

    def encode(self, text: str) -> list[int]:
        """Token ids of text with placeholders: what stands for one of them is ordinary text, all else as always.

        Raises:
            TemplateError: the tokenizer's model, too, makes a special token of its spelling.
        """
        respelled = self._special.sub(lambda found: self._spelling(self._number[found[0]]), text)
        copy, ids = self._copy
        encoded: list[int] = copy.encode(self.show(respelled), add_special_tokens=False).ids
        found = [ids.get(i, i) for i in encoded]
        expected = sum(1 for _ in self._special.finditer(text))
        if sum(i in self._special_ids for i in found) > expected:
            raise TemplateError("this tokenizer cannot encode its special tokens as ordinary text; remove them")
        return found

    def _spelling(self, number: int) -> str:
        return f"{self._key.replace('q', 'z')}{number}z"

    @cached_property
    def _special_ids(self) -> set[int]:
        return {self._backend.token_to_id(text) for text in self._texts}

    @cached_property
    def _copy(self) -> tuple[Any, dict[int, int]]:
        """The tokenizer with its special tokens respelled, and which id of its own is which of the tokenizer's."""
        from tokenizers import Tokenizer

        def renamed(text: str) -> str:
            return self._spelling(self._number[text]) if text in self._number else text

        state = json.loads(self._backend.to_str())
        state |= {"post_processor": None, "truncation": None, "padding": None}
        original = {renamed(token["content"]): int(token["id"]) for token in state["added_tokens"]}
        for token in state["added_tokens"]:
            token["content"] = renamed(token["content"])
        model = state["model"]
        vocabulary = model["vocab"]  # of BPE and words {piece: id}, of unigrams [[piece, score]]
        if isinstance(vocabulary, dict):
            model["vocab"] = {renamed(piece): i for piece, i in vocabulary.items()}
        else:
            model["vocab"] = [[renamed(piece), score] for piece, score in vocabulary]
        if "merges" in model:
            pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [pair for pair in pairs if not {"".join(pair), *pair} & self._number.keys()]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = renamed(model["unk_token"])
        copy = Tokenizer.from_str(json.dumps(state))
        ids = {copy.token_to_id(text): i for text, i in original.items()}
        return copy, {own: i for own, i in ids.items() if own is not None}
