"""Control tokens, and how text from data is kept from becoming one.

A chat template mixes its own control tokens with text that users, tools and models wrote. Two things keep the two apart:

- a `Shield` replaces, in the data, everything that could be read as a control token (or complete one together with the template's
  text beside it) by an unguessable stand-in, before the template sees it;
- `Controls.encode` turns the rendered text into ids with a copy of the tokenizer whose control tokens go by unguessable names:
  only the control tokens that the template wrote are translated to those names, and the stand-ins back to plain text.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from cascade_rl.errors import RenderError

# White space that tokenizers add as tokens (runs of blanks, of newlines) is text, whoever writes it.
_BLANK = " \t\r\n▁"
# Words of tool schemas that templates look at: they must reach the template as they are.
# fmt: off
_SCHEMA_WORDS = frozenset((
    "type", "function", "name", "description", "parameters", "properties", "required", "items", "enum", "default", "title",
    "format", "anyOf", "oneOf", "allOf", "const", "additionalProperties", "minimum", "maximum", "minItems", "maxItems", "pattern",
    "return", "string", "number", "integer", "boolean", "object", "array", "null",
))
# fmt: on
# Of the number of a stand-in.
DIGITS = 8


class Controls:
    """The control tokens of a tokenizer, and ids for text in which only the format can write them.

    ids: {"<|im_end|>": 2, ...}, every added token that is not white space. RenderError where text cannot be told from them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = tokenizer.added_tokens_decoder
        self.ids = {token.content: number for number, token in added.items() if token.content.strip(_BLANK)}
        names = sorted(self.ids, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self.joined = "\0".join(names)
        self.heads = {name[i:] for name in names for i in range(1, len(name))}
        self.tails = {name[:i] for name in names for i in range(1, len(name))}
        self.longest = max(map(len, names), default=0)
        self._tokenizer = tokenizer
        self._alias = {name: secrets.token_hex(16) for name in names}
        self._start = secrets.token_hex(16)
        self._core = self._renamed()
        self._probe()

    def shield(self) -> "Shield":
        return Shield(self)

    def encode(self, text: str, shield: "Shield") -> list[int]:
        """Ids of a stretch of rendered text, as it is tokenised after a control token."""
        aliased = self.pattern.sub(lambda match: self._alias[match.group()], text)
        return self._core.encode(self._start + shield.reveal(aliased), add_special_tokens=False).ids[1:]

    def decode(self, ids: Sequence[int], shield: "Shield") -> str:
        """The text of ids, with control tokens spelled out; what merely looks like one is behind the shield."""
        text = self._decode(ids)
        numbers = set(self.ids.values())
        if len(self.pattern.findall(text)) == sum(number in numbers for number in ids):
            return text
        parts, run = [], []
        for number in ids:
            if number in numbers:
                parts += [shield.hide(self._decode(run)), self._decode([number])]
                run = []
            else:
                run.append(number)
        return "".join([*parts, shield.hide(self._decode(run))])

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _renamed(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizer in which every control token has its alias for a name, and its id unchanged."""
        state = json.loads(cast(Any, self._tokenizer).backend_tokenizer.to_str())
        for token in state["added_tokens"]:
            token["content"] = self._alias.get(token["content"], token["content"])
        model = state["model"]
        if isinstance(model.get("vocab"), dict):
            model["vocab"] = {self._alias.get(piece, piece): number for piece, number in model["vocab"].items()}
        elif isinstance(model.get("vocab"), list):
            model["vocab"] = [[self._alias.get(piece, piece), score] for piece, score in model["vocab"]]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._alias.get(model["unk_token"], model["unk_token"])
        state["post_processor"] = state["truncation"] = state["padding"] = None
        try:
            core = tokenizers.Tokenizer.from_str(json.dumps(state))
        except Exception as error:  # the library raises plain Exception
            raise RenderError(
                f"tokenizer: its control tokens cannot be told from text ({error}); use another tokenizer"
            ) from error
        core.add_special_tokens([AddedToken(self._start, normalized=False)])
        return core

    def _probe(self) -> None:
        wrong = [name for name, alias in self._alias.items() if self._core.token_to_id(alias) != self.ids[name]]
        text = " ".join(self._alias)
        made = set(self._core.encode(text, add_special_tokens=False).ids) & set(self.ids.values())
        if wrong or made:
            names = wrong or [name for name, number in self.ids.items() if number in made]
            raise RenderError(f'tokenizer: its token "{names[0]}" cannot be told from the same text; use another tokenizer')


class Shield:
    """Stand-ins for the text of one rendering: `reveal(hide(text)) == text`."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._key = secrets.token_hex(8)
        self._codes: dict[str, str] = {}
        self._hidden: list[str] = []

    def hide(self, text: str) -> str:
        """`text` with stand-ins for what is, or beside a template's text could become, a control token.

        That is: whole control tokens; an end that begins one ("...<|im_"); a start that ends one; a text that is part of one.
        """
        controls = self._controls
        if not text or text in controls.joined:
            return self._code(text) if text else text
        reach = min(controls.longest - 1, len(text) - 1)
        head = next((k for k in range(reach, 0, -1) if text[:k] in controls.heads), 0)
        rest = text[head:]
        tail = next((k for k in range(min(reach, len(rest)), 0, -1) if rest[-k:] in controls.tails), 0)
        middle = rest[: len(rest) - tail]
        middle = controls.pattern.sub(lambda match: self._code(match.group()), middle)
        return (self._code(text[:head]) if head else "") + middle + (self._code(rest[-tail:]) if tail else "")

    def hide_all(self, value: Any, words: frozenset[str] = frozenset()) -> Any:
        """A JSON value with every string and key hidden, but for `words`."""
        match value:
            case str():
                return value if value in words else self.hide(value)
            case Mapping():
                return {self.hide_all(key, words): self.hide_all(inner, words) for key, inner in value.items()}
            case list() | tuple():
                return [self.hide_all(inner, words) for inner in value]
            case _:
                return value

    def hide_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A tool's schema, hidden but for the words that templates look at."""
        return self.hide_all(schema, _SCHEMA_WORDS)

    def reveal(self, text: str) -> str:
        first, *rest = text.split(self._key)  # a pattern would be compiled anew for each rendering
        return first + "".join(self._hidden[int(part[:DIGITS])] + part[DIGITS:] for part in rest)

    def reveal_all(self, value: Any) -> Any:
        match value:
            case str():
                return self.reveal(value)
            case Mapping():
                return {self.reveal(key): self.reveal_all(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.reveal_all(inner) for inner in value]
            case _:
                return value

    def _code(self, text: str) -> str:
        if text not in self._codes:
            self._codes[text] = f"{self._key}{len(self._hidden):0{DIGITS}d}"
            self._hidden.append(text)
        return self._codes[text]
