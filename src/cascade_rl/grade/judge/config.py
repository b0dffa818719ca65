"""Which model judges, and how it is asked."""

import math
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """`judge = { model = "judge" }` in a recipe, or `{ model = "big", url = "http://localhost:8000/v1", key_env = "MY_KEY" }`.

    model           an earlier stage's name, "start", "smollm2", a hub id or a model folder (with a "/"); with a url: what the endpoint
                    calls it.
    url             of an OpenAI-compatible endpoint, up to and with its version: "/chat/completions" is added.
    key_env         the environment variable that holds the endpoint's key ("": none is sent). The key itself is never in a recipe.
    thinking        whether it reasons first; only what follows the reasoning is read.
    temperature, top_p, max_new_tokens   how it is sampled.
    timeout_s       (endpoint) for one question, all tries together.
    retries         (endpoint) further tries after a failure that may pass.
    concurrency     (endpoint) questions at once.
    """

    NOT_IN_FINGERPRINT: ClassVar = ("key_env", "timeout_s", "retries", "concurrency")  # they change who waits, not what is said

    model: str
    url: str = ""
    key_env: str = ""
    thinking: bool = True
    temperature: float = 0.6
    top_p: float = 0.95
    max_new_tokens: int = 1024
    timeout_s: float = 120.0
    retries: int = 3
    concurrency: int = 8

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError('judge: model is empty; name an earlier stage, a model folder (with a "/"), or an endpoint\'s model')
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise ValueError(
                f"judge: temperature {self.temperature} must be 0 or more, and top_p {self.top_p} above 0 and at most 1"
            )
        if self.max_new_tokens < 1 or self.concurrency < 1 or self.retries < 0:
            raise ValueError(
                f"judge: max_new_tokens {self.max_new_tokens} and concurrency {self.concurrency} must be at least 1,"
                f" retries {self.retries} at least 0"
            )
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"judge: timeout_s {self.timeout_s} must be more than 0")
        if self.key_env and not self.url:
            raise ValueError(f'judge: key_env "{self.key_env}" is for an endpoint; give its url')
        if self.key_env and not self.key_env.replace("_", "").isalnum():
            raise ValueError(
                "judge: key_env must be the name of an environment variable (letters, digits, _), never the key itself"
            )
        if self.url:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f'judge: url "{parts.hostname or self.url[:40]}" must begin with http:// or https:// and a host')
            if parts.username or parts.password or parts.query:
                raise ValueError("judge: url holds a name, a password or a query; put a key into key_env's variable instead")
