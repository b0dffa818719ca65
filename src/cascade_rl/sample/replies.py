"""The embedded sampler as a `Chat`: a model folder that is asked in text."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.errors import CascadeError
from cascade_rl.model.render import RenderConfig, Renderer, load_renderer
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.records import Message, Reply, SamplingParams

if TYPE_CHECKING:
    from cascade_rl.sample.local import LocalSampler


class LocalChat:
    """A model in this process, loaded at the first question. All questions of a call are one batch of the sampler."""

    def __init__(
        self,
        folder: Path,
        params: SamplingParams,
        *,
        thinking: bool = True,
        dtype: str = "auto",
        render: RenderConfig | None = None,
    ) -> None:
        self.folder, self.params, self.thinking, self.dtype = folder, params, thinking, dtype
        self.render = render or RenderConfig()
        self._opened: tuple[Renderer, LocalSampler] | None = None

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> list[Reply]:
        """See `protocols.Chat`. A question that the format cannot express or that leaves no room to answer is a failure."""
        renderer, sampler = self._open()
        replies: dict[int, Reply] = {}
        contexts: dict[int, list[int]] = {}
        for place, conversation in enumerate(conversations):
            try:
                ids = renderer.prompt(conversation, (), self.thinking)
            except CascadeError as error:
                replies[place] = Reply("", failure=str(error))
                continue
            if sampler.max_context is not None and len(ids) >= sampler.max_context:
                told = f"the question has {len(ids):,} tokens; the judge's context is {sampler.max_context:,}"
                replies[place] = Reply("", failure=told)
            else:
                contexts[place] = ids
        if contexts:
            turns = sampler.sample(list(contexts.values()), 1, self.params, [seeds[place] for place in contexts])
            for place, (turn,) in zip(contexts, turns, strict=True):
                if turn.finish == "length":
                    replies[place] = Reply("", failure=f"no end within {len(turn.answer_ids):,} tokens")
                else:
                    replies[place] = Reply(renderer.parse(turn.answer_ids, (), self.thinking).message.content)
        return [replies[place] for place in range(len(conversations))]

    def _open(self) -> "tuple[Renderer, LocalSampler]":
        if self._opened is None:
            from dataclasses import replace

            from cascade_rl.sample.local import LocalSampler

            renderer = load_renderer(load_tokenizer(self.folder), self.render)
            self.params = replace(self.params, stop_ids=renderer.stop_ids)
            self._opened = renderer, LocalSampler(self.folder, dtype=self.dtype, tokenizer=renderer.tokenizer)
        return self._opened
