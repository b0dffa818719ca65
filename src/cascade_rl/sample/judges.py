"""Opens the model that a `JudgeConfig` names."""

from collections.abc import Mapping
from pathlib import Path

from cascade_rl.errors import ModelError, RecipeError, unknown
from cascade_rl.grade.judge.config import JudgeConfig
from cascade_rl.model.render import RenderConfig
from cascade_rl.model.sources import resolve
from cascade_rl.protocols import Chat
from cascade_rl.records import SamplingParams
from cascade_rl.sample.endpoint import EndpointChat
from cascade_rl.sample.replies import LocalChat

FETCHED = ("smollm2",)


def is_stage(config: JudgeConfig) -> bool:
    """Whether the judge is a checkpoint of the run: neither an endpoint, nor a folder, nor a model that is fetched."""
    return not config.url and "/" not in config.model and config.model not in FETCHED


def open_judge(
    config: JudgeConfig,
    checkpoints: Mapping[str, Path],
    where: str,
    *,
    render: RenderConfig,
    dtype: str = "auto",
) -> Chat:
    """A judge ready to be asked; weights are read at its first question. checkpoints: stage name -> its model folder.

    render: the run's format, for its own checkpoints; a model from elsewhere speaks its own. Raises RecipeError for a name or key that
    is not there.
    """
    params = SamplingParams(temperature=config.temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)
    if config.url:
        return EndpointChat(
            url=config.url, model=config.model, params=params, key_env=config.key_env, timeout_s=config.timeout_s,
            retries=config.retries, concurrency=config.concurrency,
        )  # fmt: skip
    if is_stage(config):
        if config.model not in checkpoints:
            way_out = 'name an earlier stage, a model folder with a "/", "smollm2", or an endpoint with url'
            raise RecipeError(unknown(f"{where}: judge", config.model, checkpoints, way_out))
        return LocalChat(checkpoints[config.model], params, thinking=config.thinking, dtype=dtype, render=render)
    try:
        folder = resolve(config.model)
    except ModelError as error:
        raise RecipeError(f"{where}: judge: {error}") from None
    return LocalChat(folder, params, thinking=config.thinking, dtype=dtype)
