"""A plain answer that follows given instructions: proof that they can stand together, and what the audit feeds the grader."""

import json
from collections.abc import Mapping
from typing import Any

# Sentences with none of the words that instructions name, no comma, and none of the rare letters.
_PLAIN = (
    "It is a nice thing to see.", "It is here and it is there.", "Some are at ease too.", "Others do not mind.", "It lasts all day.",
    "It is not hard at all.", "Most are content.",
)  # fmt: skip
_LONG = "Entertainment matters more than administration."  # many letters in few words
MAX_MIN_CHARS = 60  # what fits in "less than 25 words" beside two other instructions
_FOREIGN = {
    "de": "Das ist eine sehr schöne Sache und ich freue mich jeden Tag darüber.",
    "fr": "C'est une très belle chose et je suis heureux de la voir tous les jours.",
    "es": "Es una cosa muy bonita y me alegro de verla todos los días.",
    "it": "È una cosa molto bella e sono felice di vederla tutti i giorni.",
    "pt": "É uma coisa muito bonita e não me canso de olhar para ela todos os dias.",
    "nl": "Het is een heel mooi ding en ik ben blij dat ik het elke dag zie.",
    "sv": "Det är en mycket vacker sak och jag är glad att jag får se den varje dag.",
    "fi": "Se on hyvin kaunis asia ja olen iloinen että näen sen joka päivä.",
    "pl": "To jest bardzo piękna rzecz i cieszę się że widzę ją każdego dnia.",
    "ru": "Это очень красивая вещь и я рад видеть её каждый день.",
    "bg": "Това е много красиво нещо и се радвам да го виждам всеки ден.",
    "uk": "Це дуже гарна річ і я радий бачити її щодня.",
    "tr": "Bu çok güzel bir şey ve onu her gün gördüğüm için mutluyum.",
    "vi": "Đây là một điều rất đẹp và tôi rất vui khi được nhìn thấy nó mỗi ngày.",
    "sw": "Hiki ni kitu kizuri sana na ninafurahi kukiona kila siku nyumbani kwangu.",
    "ar": "هذا شيء جميل جدا وأنا سعيد برؤيته كل يوم",
    "fa": "این یک چیز بسیار زیبا است و من خوشحالم که هر روز آن را می‌بینم",
    "hi": "यह बहुत सुंदर चीज़ है और मैं इसे हर दिन देखकर खुश होता हूँ",
    "ko": "이것은 매우 아름다운 것이고 나는 매일 그것을 보게 되어 기쁩니다",
    "th": "นี่เป็นสิ่งที่สวยงามมากและฉันดีใจที่ได้เห็นมันทุกวัน",
}


def gold_answer(told: Mapping[str, Mapping[str, Any]]) -> str:
    """An answer that follows all instructions of a drawn prompt, id -> kwargs."""
    named = {id.partition(":")[2]: kwargs for id, kwargs in told.items()}
    if "response_language" in named:
        code = named["response_language"]["language"]
        highlights = named.get("number_highlighted_sections", {}).get("num_highlights", 0)
        sentences = [f"*{_FOREIGN[code]}*"] * highlights + [_FOREIGN[code]] * 3
    else:
        sentences = _sentences(named)
    text = _shaped(sentences, named)
    if "english_lowercase" in named:
        text = text.lower()
    if "english_capital" in named:
        text = text.upper()
    if "quotation" in named:
        text = f'"{text}"'
    if "repeat_prompt" in named:
        text = f"{named['repeat_prompt']['prompt_to_repeat']}\n{text}"
    return text


def _sentences(named: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What must be said, sentence by sentence."""
    said = [_PLAIN[0]]
    if "constrained_response" in named:
        said.append("My answer is yes.")
    if keywords := named.get("existence", {}).get("keywords"):
        said.append(f"I name {' and '.join(keywords)}.")
    if (given := named.get("frequency")) and given["relation"] == "at least":
        said.append(f"I said {' and '.join([given['keyword']] * given['frequency'])}.")
    if (given := named.get("letter_frequency")) and given["let_relation"] == "at least":
        said.append(f"I spell {' '.join([given['letter']] * given['let_frequency'])}.")
    if (given := named.get("capital_word_frequency")) and given["capital_relation"] == "at least":
        said.append(f"It is {' '.join(['SO'] * given['capital_frequency'])} good.")
    if given := named.get("number_placeholders"):
        said.append(f"It is for {' and '.join(['[name]'] * given['num_placeholders'])}.")
    if given := named.get("number_highlighted_sections"):
        said.append(f"It is {' '.join(['*entertainment*'] * given['num_highlights'])}.")
    least = named.get("number_sentences", {})
    wanted = least["num_sentences"] if least.get("relation") == "at least" else 0
    if wanted > len(said):
        said += _PLAIN[1 : 1 + wanted - len(said)]
    words = named.get("number_words", {})
    if words.get("relation") == "at least":
        while len(" ".join(said).split()) < words["num_words"]:
            said += _PLAIN[1:]
    if len(" ".join(said)) < MAX_MIN_CHARS:
        said.append(_LONG)
    upper = least["num_sentences"] - 1 if least.get("relation") == "less than" else 0
    if upper and len(said) > upper:  # one long sentence says it all
        said = [f"{' and '.join(sentence.rstrip('.') for sentence in said)}."]
    return said


def _shaped(sentences: list[str], named: Mapping[str, Mapping[str, Any]]) -> str:
    """Sentences in the shape that formats ask for: paragraphs, bullets, sections, title, postscript, last words."""
    text = " ".join(sentences)
    more = _PLAIN[1:] if "response_language" not in named else sentences * 6
    if "json_format" in named:
        return json.dumps({"text": text})
    if given := named.get("number_paragraphs"):
        text = "\n***\n".join([text, *more[: given["num_paragraphs"] - 1]])
    if given := named.get("nth_paragraph_first_word"):
        parts = [text, *more[: given["num_paragraphs"] - 1]]
        nth = given["nth_paragraph"] - 1
        parts[nth] = f"{given['first_word']} first. {parts[nth]}"
        text = "\n\n".join(parts)
    if given := named.get("multiple_sections"):
        heads = [f"{given['section_spliter']} {i}" for i in range(1, given["num_sections"] + 1)]
        texts = [text, *more][: len(heads)]
        text = "\n".join(f"{head}\n{part}" for head, part in zip(heads, texts, strict=True))
    if given := named.get("number_bullet_lists"):
        text = "\n".join([text, *(f"* {part}" for part in more[: given["num_bullets"]])])
    if "two_responses" in named:
        text = f"{text}\n******\nIn other words: {text}"
    if "title" in named:
        text = f"<<{sentences[0] if 'response_language' in named else 'It is so'}>>\n{text}"
    if given := named.get("postscript"):
        text = f"{text}\n{given['postscript_marker']} It is late."
    if given := named.get("end_checker"):
        text = f"{text}\n{given['end_phrase']}"
    return text
