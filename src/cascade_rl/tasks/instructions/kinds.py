"""The 25 kinds of instructions that IFEval tests: how often each is drawn, with which arguments, and in which words.

The wordings are ours. Arguments are such that an answer of a hundred words can follow them.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from cascade_rl.grade.instructions.describe import language_name

_WORDS = """
    river window garden coffee market winter summer letter bridge silver copper yellow orange purple island forest dinner kitchen
    doctor teacher farmer painter sailor captain pocket button ticket travel journey morning evening shadow mirror candle basket
    blanket pillow hammer ladder engine rocket planet comet thunder breeze meadow valley harbor desert castle palace village city
    street corner station school office library museum theater concert guitar violin drum melody rhythm dance story novel poem
    chapter secret puzzle riddle mystery history science number color pattern balance energy motion future memory dream courage
    honesty patience wisdom freedom peace justice friend family neighbor stranger guest partner leader winner budget profit value
    quality method project problem reason result effort habit health muscle breath water bread butter pepper lemon apple banana
    tomato carrot honey sugar flavor recipe camera computer network signal screen message answer question promise
    """
WORDS = tuple(_WORDS.split())
END_PHRASES = (
    "That is all I know.", "Let me know what you think.", "I hope this was of use.", "And so it goes.", "Thank you for reading.",
    "Nothing more needs to be said.", "The rest is up to you.", "Ask me again tomorrow.", "May it bring you luck.", "So ends my answer.",
    "What would you do?", "Is that enough for today?", "Have a lovely day!", "This is where I stop.", "More will follow soon.",
)  # fmt: skip
MARKS = (
    "name", "date", "address", "city", "phone number", "email", "time", "place", "price", "title", "company", "product",
)  # fmt: skip
SPLITTERS = ("Section", "SECTION", "Part", "PART", "Paragraph", "PARAGRAPH", "Chapter")
_LANGUAGES = "de fr es it pt nl sv fi pl ru bg uk tr vi sw ar fa hi ko th"
LANGUAGES = tuple(_LANGUAGES.split())
COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

Drawn = tuple[dict[str, Any], tuple[str, ...]]  # kwargs of the check, and wordings to choose from


def _count(rng: random.Random, number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) and rng.random() < 0.4 else str(number)


def _s(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _quoted(rng: random.Random, words: Sequence[str]) -> str:
    """ "a", "b" and "c", or without the quotes."""
    mark = rng.choice(('"', "'", ""))
    shown = [f"{mark}{word}{mark}" for word in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _bound(rng: random.Random, number: int, noun: str, relation: str) -> str:
    """ "at least 3 words", "three or more words"; "less than 3 words", "fewer than 3 words", "at most 2 words"."""
    if relation == "at least":
        many = _s(number, noun)
        n = _count(rng, number)
        return rng.choice(
            (f"at least {n} {many}", f"{n} or more {many}", f"no fewer than {n} {many}", f"a minimum of {n} {many}")
        )
    n, most = _count(rng, number), _count(rng, number - 1)
    less, many = _s(number, noun), _s(number - 1, noun)
    ways = [f"less than {n} {less}", f"fewer than {n} {less}", f"under {n} {less}"]
    return rng.choice([*ways, f"at most {most} {many}", f"no more than {most} {many}"] if number > 2 else ways)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# --- one function a kind: kwargs and wordings ----------------------------------------------------------------------------------------


def _no_comma(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Do not use any commas.", "Use no commas in your answer.", "Your answer must not contain a single comma.", "Avoid commas.",
        "No commas are allowed.", "Please write it without commas.", "Commas are forbidden.", "Leave out all commas.",
        "Refrain from using commas.", "The text has to do without commas.",
    )  # fmt: skip


def _number_words(rng: random.Random, words: list[str]) -> Drawn:
    relation = rng.choice(("at least", "less than", "less than"))
    number = rng.choice((30, 40, 50, 60, 75, 80, 100)) if relation == "at least" else rng.choice((25, 30, 40, 50, 60, 80))
    told = _bound(rng, number, "word", relation)
    return {"num_words": number, "relation": relation}, (
        f"Use {told}.", f"Answer with {told}.", f"The answer should have {told}.", f"Write {told}.", f"Make it {told}.",
        f"Your response must contain {told}.", f"Keep to {told}.",
    )  # fmt: skip


def _number_sentences(rng: random.Random, words: list[str]) -> Drawn:
    relation = rng.choice(("at least", "less than", "less than"))
    number = rng.randint(3, 7) if relation == "at least" else rng.randint(2, 6)
    told = _bound(rng, number, "sentence", relation)
    return {"num_sentences": number, "relation": relation}, (
        f"Write {told}.", f"Answer in {told}.", f"Your response should contain {told}.", f"The answer must have {told}.",
        f"Use {told}.", f"I want {told}.",
    )  # fmt: skip


def _forbidden_words(rng: random.Random, words: list[str]) -> Drawn:
    given = [words.pop() for _ in range(rng.randint(1, 3))]
    told = _quoted(rng, given)
    word = _s(len(given), "word")
    return {"forbidden_words": given}, (
        f"Do not use the {word} {told}.", f"Avoid the {word} {told}.", f"Do not mention {told}.", f"The {word} {told} must not occur.",
        f"Your answer may not include the {word} {told}.", f"Leave out the {word} {told}.", f"Write it without the {word} {told}.",
        f"Don't include the {_s(len(given), 'keyword')} {told} in your response.",
    )  # fmt: skip


def _highlights(rng: random.Random, words: list[str]) -> Drawn:
    number = rng.choice((1, 1, 2, 2, 3, 3, 4))
    n = _count(rng, number)
    part, phrase, section = _s(number, "part"), _s(number, "phrase"), _s(number, "section")
    return {"num_highlights": number}, (
        f"Highlight at least {n} {section} of your answer with markdown, like *this part*.",
        f"Put at least {n} {phrase} in italics with single asterisks, for example *like this*.",
        f"Mark {n} or more {part} of the text with asterisks: *marked part*.",
        f"Emphasise at least {n} {phrase} in markdown, such as *an important phrase*.",
        f"There must be at least {n} highlighted {section}, written as *highlighted text*.",
        f"Use markdown to highlight no fewer than {n} {part}, i.e. *highlighted*.",
    )


def _frequency(rng: random.Random, words: list[str]) -> Drawn:
    word = words.pop()
    relation = rng.choice(("at least", "at least", "less than"))
    number = rng.choice((1, 2, 2, 3, 3, 4)) if relation == "at least" else rng.choice((2, 3, 4))
    kwargs = {"keyword": word, "frequency": number, "relation": relation}
    shown = rng.choice((f'"{word}"', f"'{word}'", word))
    if relation == "less than":
        return kwargs, (
            f"The word {shown} should appear less than {_times(number)}.", f"Use the word {shown} at most {_times(number - 1)}.",
            f"Do not use the word {shown} more than {_times(number - 1)}.", f"Mention {shown} fewer than {number} times.",
        )  # fmt: skip
    return kwargs, (
        f"Use the word {shown} at least {_times(number)}.", f"The word {shown} must appear at least {_times(number)}.",
        f"Mention the word {shown} {number} or more times.", f"Make sure that {shown} occurs at least {_times(number)}.",
        f"In your response the word {shown} should be used at least {_times(number)}.",
    )  # fmt: skip


def _repeat_prompt(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Before you answer, copy the request above exactly as it is. Then give your answer.",
        "First repeat the above request without changing a word, then answer it. Say nothing before the repeated request.",
        "Begin by repeating the request above word for word; only after that comes your answer. This sentence is not part of it.",
        "Start your response with an exact copy of the request above, and then respond to it.",
        "Repeat the whole request (all before this sentence) at the very beginning of your reply. Answer it after that.",
    )


def _quotation(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Put your whole answer in double quotation marks.", "Wrap everything you write in double quotes.",
        "Your entire response should stand between double quotation marks.", "Enclose the full answer in double quotation marks.",
        'Start with " and end with ", so that the whole reply is in quotation marks.', "The complete text must be in double quotes.",
    )  # fmt: skip


def _lowercase(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Use only lowercase letters.", "Write everything in lowercase, in English.", "No capital letters are allowed.",
        "Your entire response must be in English and in small letters only.", "Do not use any capital letters.",
        "All letters must be lowercase.", "Answer in lower case only; not a single capital letter.",
    )  # fmt: skip


def _uppercase(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Use only capital letters.", "Write everything in capital letters, in English.", "No lowercase letters are allowed.",
        "Your entire response must be in English and in all caps.", "Do not use any small letters.", "ANSWER IN CAPITAL LETTERS ONLY.",
        "All letters must be uppercase.",
    )  # fmt: skip


def _capital_words(rng: random.Random, words: list[str]) -> Drawn:
    relation = rng.choice(("at least", "at least", "less than"))
    number = rng.choice((1, 2, 3, 4, 5)) if relation == "at least" else rng.choice((2, 3, 4, 6))
    told = _bound(rng, number, "word", relation)
    kwargs = {"capital_frequency": number, "capital_relation": relation}
    if relation == "less than":
        return kwargs, (
            f"Words in all capital letters may occur, but {told} of that sort.", f"Use {told} in all capital letters.",
            f"Stress what matters with words in all caps, but use {told} in all caps.",
        )  # fmt: skip
    return kwargs, (
        f"Write {told} in ALL CAPITAL letters.", f"Use {told} in all caps for emphasis.", f"Include {told} in all capital letters.",
        f"I want to see {told} written in full capitals.",
    )  # fmt: skip


def _existence(rng: random.Random, words: list[str]) -> Drawn:
    given = [words.pop() for _ in range(rng.choice((1, 2, 2, 3)))]
    told, word = _quoted(rng, given), _s(len(given), "word")
    return {"keywords": given}, (
        f"Include the {_s(len(given), 'keyword')} {told}.", f"Use the {word} {told} in your answer.", f"The {word} {told} must occur.",
        f"Make sure to mention {told}.", f"Work the {word} {told} into the text.", f"It has to contain the {word} {told}.",
    )  # fmt: skip


def _title(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Give it a title in double angular brackets, like <<my title>>.", "Add a title wrapped in double angle brackets, i.e. <<title>>.",
        "Your answer must have a title, written as <<title>>.", "Begin with a title in double angular brackets: <<a title>>.",
        "Put a title on top, in double angular brackets, such as <<a good title>>.",
    )  # fmt: skip


def _letter(rng: random.Random, words: list[str]) -> Drawn:
    if rng.random() < 0.6:
        letter = rng.choice("abcdefghilmnoprstuwy")
        number = rng.randint(3, 15)
        kwargs = {"letter": letter, "let_frequency": number, "let_relation": "at least"}
        return kwargs, (
            f"The letter {letter} should appear at least {number} times.", f"Use the letter '{letter}' at least {number} times.",
            f"Make sure that the letter {letter} occurs {number} or more times.",
        )  # fmt: skip
    letter = rng.choice("jqxzkvjqxzkvbpgwfy")
    number = rng.randint(2, 5) if letter in "jqxzkv" else rng.randint(5, 9)
    kwargs = {"letter": letter, "let_frequency": number, "let_relation": "less than"}
    return kwargs, (
        f"The letter {letter} should appear less than {number} times.", f'Use the letter "{letter}" at most {number - 1} times.',
        f"Let the letter {letter} occur fewer than {number} times.",
    )  # fmt: skip


def _bullets(rng: random.Random, words: list[str]) -> Drawn:
    number = rng.choice((2, 3, 3, 3, 4, 4, 5))
    n = _count(rng, number)
    return {"num_bullets": number}, (
        f"Use exactly {n} bullet points in markdown, such as:\n* First point\n* Second point",
        f"The answer must contain exactly {n} markdown bullet points, each on a line that starts with *.",
        f"Answer with a list of exactly {n} bullet points. Start each with an asterisk, like * this.",
        f"Include exactly {n} bullet points in this form:\n* a point",
        f"Make it {n} bullet points in markdown, no more and no less.",
    )


def _language(rng: random.Random, words: list[str]) -> Drawn:
    code = rng.choice((*LANGUAGES[:6], *LANGUAGES))  # the model knows the large European ones best
    told = language_name(code)
    return {"language": code}, (
        f"Write your whole answer in {told}.", f"Answer only in {told}; no other language is allowed.", f"Reply in {told}.",
        f"Your entire response should be in {told}.", f"Use no language but {told}.", f"The complete answer has to be in {told}.",
    )  # fmt: skip


def _placeholders(rng: random.Random, words: list[str]) -> Drawn:
    number = rng.choice((1, 2, 2, 3, 3, 4))
    n, mark, other = _count(rng, number), *rng.sample(MARKS, 2)
    word = _s(number, "placeholder")
    return {"num_placeholders": number}, (
        f"Include at least {n} {word} in square brackets, such as [{mark}].",
        f"Leave at least {n} {word} in square brackets, for example [{mark}] or [{other}].",
        f"The text must have {n} or more {word} like [{mark}].",
        f"Use a minimum of {n} {word} written in square brackets, i.e. [{mark}].",
    )


def _paragraphs(rng: random.Random, words: list[str]) -> Drawn:
    number = rng.choice((2, 2, 3, 3, 4))
    n = _count(rng, number)
    return {"num_paragraphs": number}, (
        f"Write exactly {n} paragraphs and separate them with the markdown divider ***.",
        f"The answer has {n} paragraphs, with a line of three asterisks (***) between them.",
        f"Give {n} paragraphs. Paragraphs are separated by ***.",
        f"Divide the text into exactly {n} paragraphs with the divider: ***",
    )


def _end(rng: random.Random, words: list[str]) -> Drawn:
    phrase = rng.choice(END_PHRASES)
    return {"end_phrase": phrase}, (
        f'End with the exact phrase "{phrase}" and nothing after it.', f"Finish your answer with exactly these words: {phrase}",
        f'The very last words must be "{phrase}"', f'Close with "{phrase}" No other words should follow.',
        f"End your response with this sentence: {phrase} Write nothing else after that.",
    )  # fmt: skip


def _postscript(rng: random.Random, words: list[str]) -> Drawn:
    marker = rng.choice(("P.S.", "P.S.", "P.P.S"))
    return {"postscript_marker": marker}, (
        f"Add a postscript at the end that starts with {marker}", f"At the end of your response put a postscript beginning with {marker}",
        f"Close with a postscript that starts with {marker}", f"Do not forget a postscript, starting with {marker} at the end.",
    )  # fmt: skip


def _two_responses(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "Give two different answers, separated by six asterisks: ******",
        "Write exactly two versions and put six asterisks (******) between them.",
        "I want two different responses. Separate them with 6 asterisk symbols: ******.",
        "Answer twice in different ways, with a line ****** between the two answers.",
    )


def _json(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        "The entire output must be in JSON format.", "Answer in valid JSON and nothing else.", "Wrap your whole answer in JSON.",
        "Format your whole response as one JSON object; markdown ticks such as ```json are fine.", "Please reply with JSON only.",
    )  # fmt: skip


def _sections(rng: random.Random, words: list[str]) -> Drawn:
    number, splitter = rng.choice((2, 2, 3, 3, 4)), rng.choice(SPLITTERS)
    n = _count(rng, number)
    return {"section_spliter": splitter, "num_sections": number}, (
        f"Divide the answer into exactly {n} sections, each starting with {splitter} X, for example:\n{splitter} 1\n...\n{splitter} 2",
        f"Write {n} sections. Mark the beginning of each with {splitter} and its number, as in {splitter} 1.",
        f"The text must have {n} sections with the headings {splitter} 1 to {splitter} {number}.",
        f'There must be {n} sections; begin each one with "{splitter} X", where X is its number.',
    )


def _first_word(rng: random.Random, words: list[str]) -> Drawn:
    number = rng.choice((2, 2, 3, 3))
    nth, word = rng.randint(1, number), words.pop()
    n, place = _count(rng, number), ("first", "second", "third")[nth - 1]
    return {"num_paragraphs": number, "nth_paragraph": nth, "first_word": word}, (
        f"Write exactly {n} paragraphs with a blank line between them. The {place} paragraph must start with the word {word}.",
        f'There should be {n} paragraphs, separated by two line breaks, and paragraph {nth} has to begin with "{word}".',
        f'Use {n} paragraphs, parted by empty lines. Begin the {place} one with the word "{word}".',
    )


def _constrained(rng: random.Random, words: list[str]) -> Drawn:
    return {}, (
        'Answer with one of these: "My answer is yes.", "My answer is no.", "My answer is maybe."',
        "Choose one of the following as your answer: 'My answer is yes.', 'My answer is no.', 'My answer is maybe.'",
        "Your answer must contain exactly one of these phrases: My answer is yes. My answer is no. My answer is maybe.",
        'Reply with "My answer is yes.", "My answer is no." or "My answer is maybe."',
    )


# --- the table -----------------------------------------------------------------------------------------------------------------------

# How often a kind is drawn (IFEval's own counts, those that a small model cannot learn drawn less often), and what draws it.
KINDS: dict[str, tuple[int, Callable[[random.Random, list[str]], Drawn]]] = {
    "punctuation:no_comma": (66, _no_comma),
    "length_constraints:number_words": (40, _number_words),
    "length_constraints:number_sentences": (45, _number_sentences),
    "keywords:forbidden_words": (35, _forbidden_words),
    "detectable_format:number_highlighted_sections": (48, _highlights),
    "keywords:frequency": (42, _frequency),
    "combination:repeat_prompt": (41, _repeat_prompt),
    "startend:quotation": (41, _quotation),
    "change_case:english_lowercase": (39, _lowercase),
    "keywords:existence": (39, _existence),
    "detectable_format:title": (37, _title),
    "keywords:letter_frequency": (25, _letter),
    "detectable_format:number_bullet_lists": (31, _bullets),
    "language:response_language": (15, _language),
    "detectable_content:number_placeholders": (27, _placeholders),
    "length_constraints:number_paragraphs": (27, _paragraphs),
    "startend:end_checker": (26, _end),
    "detectable_content:postscript": (26, _postscript),
    "change_case:english_capital": (25, _uppercase),
    "change_case:capital_word_frequency": (25, _capital_words),
    "combination:two_responses": (24, _two_responses),
    "detectable_format:json_format": (17, _json),
    "detectable_format:multiple_sections": (14, _sections),
    "length_constraints:nth_paragraph_first_word": (12, _first_word),
    "detectable_format:constrained_response": (10, _constrained),
}


def draw_instruction(rng: random.Random, kind: str, words: list[str]) -> tuple[dict[str, Any], str]:
    """kwargs of the check and one wording; words are taken from the end of `words`, so that no word is asked for twice."""
    kwargs, told = KINDS[kind][1](rng, words)
    return kwargs, rng.choice(told)
