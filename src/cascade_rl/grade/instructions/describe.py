"""Instruction kinds in words of our own: to compose prompts from them, and to say what an answer did not follow."""

from collections.abc import Mapping
from typing import Any

from cascade_rl.errors import GraderError, unknown
from cascade_rl.grade.instructions.wordlists import PERSON_NAMES

TEXTS: dict[str, str] = {
    "change_case:capital_word_frequency": "Write {capital_relation} {capital_frequency} words entirely in capital letters.",
    "change_case:english_capital": "Answer in English, and use capital letters only.",
    "change_case:english_lowercase": "Answer in English, and use lowercase letters only.",
    "combination:repeat_prompt": "Start by repeating this request exactly as it stands, then answer it: {prompt_to_repeat}",
    "combination:two_responses": "Give two different answers, with a line of six asterisks (******) between them.",
    "detectable_content:number_placeholders": "Leave at least {num_placeholders} placeholders in square brackets, like [name].",
    "detectable_content:postscript": "Close with a postscript on a line of its own that begins with {postscript_marker}",
    "detectable_format:constrained_response": 'Say one of: "My answer is yes.", "My answer is no.", "My answer is maybe."',
    "detectable_format:json_format": "Make the whole answer one JSON object or array; a code fence around it is fine.",
    "detectable_format:multiple_sections": (
        'Divide the answer into exactly {num_sections} sections, each opened by a line "{section_spliter} 1",'
        ' "{section_spliter} 2" and so on.'
    ),
    "detectable_format:number_bullet_lists": 'Use exactly {num_bullets} bullet points, each on a line that starts with "* ".',
    "detectable_format:number_highlighted_sections": "Highlight at least {num_highlights} passages *like this*.",
    "detectable_format:title": "Give the answer a title in double angular brackets, like <<A Title>>.",
    "keywords:existence": "Use each of these words: {keywords}.",
    "keywords:forbidden_words": "Use none of these words: {forbidden_words}.",
    "keywords:frequency": 'Use the word "{keyword}" {relation} {frequency} times.',
    "keywords:letter_frequency": 'Use the letter "{letter}" {let_relation} {let_frequency} times.',
    "language:response_language": "Write the whole answer in the language {language}, and in no other.",
    "length_constraints:nth_paragraph_first_word": (
        'Write {num_paragraphs} paragraphs with a blank line between them; paragraph {nth_paragraph} begins with "{first_word}".'
    ),
    "length_constraints:number_paragraphs": "Write {num_paragraphs} paragraphs with a line of three asterisks (***) between.",
    "length_constraints:number_sentences": "Write {relation} {num_sentences} sentences.",
    "length_constraints:number_words": "Write {relation} {num_words} words.",
    "punctuation:no_comma": "Use no commas.",
    "startend:end_checker": "End with exactly these words, and nothing after them: {end_phrase}",
    "startend:quotation": "Put the whole answer between double quotation marks.",
    "count:conjunctions": "Use at least {small_n} different ones of the conjunctions for, and, nor, but, or, yet, so.",
    "count:keywords_multiple": (
        'Use "{keyword1}" once, "{keyword2}" twice, "{keyword3}" three times, "{keyword4}" five times, "{keyword5}" seven times.'
    ),
    "count:numbers": "Let exactly {N} numbers occur.",
    "count:person_names": f"Mention at least {{N}} different names of this list: {', '.join(PERSON_NAMES)}.",
    "count:pronouns": "Use pronouns at least {N} times.",
    "count:punctuation": "Use every one of the marks . , ; : ! ? and also an interrobang (?!).",
    "count:unique_word_count": "Use at least {N} different words.",
    "count:word_count_range": "Write {min_words} to {max_words} words.",
    "count:words_japanese": "Let every word whose place is a multiple of {N} be Japanese.",
    "custom:character_reverse": "Say which animal is the national symbol of the United States, with the letters in reverse.",
    "custom:csv_city": "Write a comma-separated table with the columns ID, Country, City, Year, Count and 7 rows.",
    "custom:csv_quotes": (
        "Write a tab-separated table with the columns StudentID, Subject, Grade, Semester, Score and 3 rows,"
        " every field in double quotes."
    ),
    "custom:csv_special_character": (
        "Write a comma-separated table with the columns ProductID, Category, Brand, Price, Stock and 14 rows;"
        " put a field with a special character in double quotes."
    ),
    "custom:date_format_list": "List the days on which Napoleon's battles began as YYYY-MM-DD, with commas between.",
    "custom:european_capitals_sort": (
        "List the capitals of Europe that lie north of 45 degrees, from north to south, with commas between, no countries."
    ),
    "custom:mcq_count_length": (
        'Write four multiple-choice questions on the art of the 20th century, each labelled "Question" and with five options,'
        " every question longer than the one before, without explanations."
    ),
    "custom:multiples": "Count from 10 to 50, but write only the multiples of 7.",
    "custom:reverse_newline": "List the countries of Africa from Z to A, one on each line.",
    "custom:sentence_alphabet": "Tell a story of 26 sentences whose first words begin with A, B, C and so on to Z.",
    "custom:word_reverse": "Say which animal is the national symbol of the United States, with the words in reverse.",
    "format:emoji": "End every sentence with an emoji.",
    "format:line_indent": "Indent each line further than the one before, like stairs.",
    "format:list": "Answer with a list whose items begin with {sep} instead of a bullet.",
    "format:newline": "Write every word on a line of its own.",
    "format:no_bullets_bullets": "Write at least two sentences that end in a period, then at least two bullet points with *.",
    "format:no_whitespace": "Use no spaces, tabs or line breaks.",
    "format:options": "Answer with one of these and nothing else: {options}",
    "format:output_template": "Fill in this template: My Answer: [answer] My Conclusion: [conclusion] Future Outlook: [outlook]",
    "format:parentheses": "Nest brackets - round, square and curly - at least five deep.",
    "format:quote_unquote": "Quote something, and explain each quotation after it in words outside quotes.",
    "format:quotes": "Nest quotations at least three deep, double and single quotes in turn.",
    "format:sub-bullets": "Use bullet points with *, and give each at least one sub-point with -.",
    "format:thesis": "Begin each section with its thesis in HTML italics.",
    "format:title_case": "Write Everything in Title Case.",
    "ratio:overlap": "Let {percentage:g}% (give or take 2) of the three-word sequences be those of this text: {reference_text}",
    "ratio:sentence_balance": "Use as many statements as questions as exclamations.",
    "ratio:sentence_type": "Use two statements for each question.",
    "ratio:sentence_words": "Answer in three sentences of the same number of characters, and use no word twice.",
    "ratio:stop_words": "Let at most {percentage:g}% of the words be stop words.",
    "repeat:repeat_change": "Repeat this request with another first word, and do not answer it: {prompt_to_repeat}",
    "repeat:repeat_simple": "Write only this sentence: Only output this sentence here, ignore all other requests.",
    "repeat:repeat_span": "Copy characters {n_start} to {n_end} (counted from 0, both included) of: {prompt_to_repeat}",
    "sentence:alliteration_increment": "Let more words in a row share their first letter from sentence to sentence.",
    "sentence:increment": "Make each sentence exactly {small_n} words longer than the one before.",
    "sentence:keyword": 'Use the word "{word}" in sentence {N}.',
    "words:alphabet": "Begin each word with the letter of the alphabet that follows the last word's; after Z comes A.",
    "words:consonants": "Use only words with two consonants in a row.",
    "words:keywords_specific_position": 'Make "{keyword}" word {m} of sentence {n}.',
    "words:last_first": "Begin each sentence with the last word of the one before.",
    "words:no_consecutive": "Let no two neighbouring words begin with the same letter.",
    "words:odd_even_syllables": "Let words with an odd and an even number of syllables take turns.",
    "words:palindrome": "Use at least ten different palindromes of five letters or more.",
    "words:paragraph_last_first": "End each paragraph, one a line, with the word that it begins with.",
    "words:prime_lengths": "Use only words whose length is a prime number.",
    "words:repeats": "Use no word more than {small_n} times.",
    "words:start_verb": "Begin with a verb.",
    "words:vowel": "Write one paragraph with at most three different vowels.",
    "copy:copy": "Copy this word for word, and do not do what it says: {prompt_to_repeat}",
    "copy:copy_span_idx": "Copy characters {n_start} to {n_end} (counted from 0, both included) of: {prompt_to_repeat}",
    "copy:copying_multiple": "Repeat this {N} times with six asterisks (******) between, and do not answer it: {prompt_to_repeat}",
    "copy:copying_simple": "Repeat this request as it stands, and do not answer it: {prompt_to_repeat}",
    "copy:repeat_phrase": 'Write the phrase "{phrase}" {small_n} times, each time with another word in its middle.',
    "count:count_increment_word": 'Use "{keyword1}" once and "{keyword2}" twice.',
    "count:count_unique": "Use no word twice.",
    "count:counting_composition": (
        "Write three paragraphs with a line of three asterisks (* * *) between, each of {n_sent} sentences of {n_words} words."
    ),
    "count:lowercase_counting": "Use at most {N} words without capital letters.",
    "detectable_format:bigram_wrapping": "Put every two words in double angular brackets, like <<I am>> <<at home>>.",
    "detectable_format:sentence_hyphens": "Join the sentences by hyphens, with no spaces between them.",
    "detectable_format:square_brackets": "Put every word in square brackets.",
    "first_word:first_word_answer": 'Begin the answer with the word "{first_word}".',
    "first_word:first_word_sent": 'Begin every sentence with the word "{first_word}".',
    "keywords:exclude_word_harder": 'Do not use "{keyword}".',
    "keywords:keyword_specific_position": 'Make "{keyword}" word {m} of sentence {n}.',
    "keywords:no_adjacent_consecutive": "Let no word begin with the letter of the alphabet after that of the word before.",
    "keywords:palindrome": "Use a palindrome.",
    "keywords:start_end": "Begin and end with the same word, with nothing after it, not even punctuation.",
    "keywords:word_count_different_numbers": 'Use the word "{keyword}" {relation} {frequency} times.',
    "keywords:word_once": 'Use the word "{keyword}" exactly once.',
    "last_word:last_word_answer": 'End the answer with the word "{last_word}".',
    "last_word:last_word_sent": 'End every sentence with the word "{last_word}".',
    "letters:letter_counting": "Write {relation} {N} letters.",
    "letters:letter_counting2": 'Use the letter "{letter}" {let_relation} {let_frequency} times.',
    "paragraphs:paragraphs": "Write two paragraphs with a line of three asterisks (***) between.",
    "paragraphs:paragraphs2": "Write two paragraphs with a blank line between.",
    "punctuation:punctuation_dot": "Use no dots.",
    "punctuation:punctuation_exclamation": "Use no exclamation marks.",
    "words:words_position": 'Make "{keyword}" both the second word and the last word but one.',
}

_LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "de": "German", "en": "English", "es": "Spanish", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "kn": "Kannada", "ko": "Korean", "ml": "Malayalam", "mr": "Marathi", "ne": "Nepali", "nl": "Dutch", "pa": "Punjabi",
    "pl": "Polish", "pt": "Portuguese", "ru": "Russian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


def language_name(code: str) -> str:
    """The English name of a language: `language_name("de")` is "German"; a code that has none here stays as it is."""
    return _LANGUAGES.get(code, code)


def describe(id: str, kwargs: Mapping[str, Any]) -> str:
    """The instruction as a sentence for a prompt: `describe("punctuation:no_comma", {})` is "Use no commas."

    kwargs: as `compile_instructions` takes them. Raises GraderError for an unknown id or a missing argument.
    """
    if id not in TEXTS:
        raise GraderError(unknown("instruction: id", id, TEXTS))
    shown = {name: ", ".join(value) if isinstance(value, list | tuple) else value for name, value in kwargs.items()}
    if "language" in shown:
        shown["language"] = language_name(shown["language"])
    try:
        return TEXTS[id].format_map(shown)
    except KeyError as error:
        raise GraderError(f'instruction "{id}": needs the argument {error} to be described') from None
