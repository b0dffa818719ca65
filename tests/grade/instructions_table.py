"""For every kind of instruction: arguments, a text that follows it and one that does not (strict mode), written by hand."""

from typing import Any

STAIRS = "one\n two\n  three"
ALPHABET_STORY = " ".join(
    f"{name} went home."
    for name in (
        [
            "Ann",
            "Bob",
            "Cal",
            "Dan",
            "Eve",
            "Fay",
            "Gus",
            "Hal",
            "Ike",
            "Jan",
            "Ken",
            "Lee",
            "Max",
            "Ned",
            "Ora",
            "Pat",
            "Quin",
            "Ray",
            "Sue",
            "Ted",
            "Uma",
            "Val",
            "Wes",
            "Xia",
            "Yan",
            "Zed",
        ]
    )
)
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, Amsterdam, Warsaw, "
    "London, Brussels, Kyiv, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chișinău, Bern, Ljubljana, Zagreb"
)
AFRICA = """Zimbabwe
Zambia
Uganda
Tunisia
Togo
Tanzania
Sudan
South Sudan
South Africa
Somalia
Sierra Leone
Seychelles
Senegal
São Tomé and Príncipe
Rwanda
Republic of the Congo
Nigeria
Niger
Namibia
Mozambique
Morocco
Mauritius
Mauritania
Mali
Malawi
Madagascar
Libya
Liberia
Lesotho
Kenya
Ivory Coast
Guinea-Bissau
Guinea
Ghana
Gambia
Gabon
Ethiopia
Eswatini
Eritrea
Equatorial Guinea
Egypt
Djibouti
Democratic Republic of the Congo
Comoros
Chad
Central African Republic
Cameroon
Cabo Verde
Burundi
Burkina Faso
Botswana
Benin
Angola
Algeria"""
QUIZ = "\n".join(
    f"Question {number}: {question}\nA) Picasso\nB) Braque\nC) Klee\nD) Miró\nE) Dalí"
    for number, question in enumerate(
        (
            "Who?",
            "Who was it?",
            "Who painted Guernica?",
            "Who painted Guernica in the year 1937?",
        ),
        start=1,
    )
)
CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{i},France,Paris,200{i},{i}" for i in range(1, 8))
PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f'{i},Toys,"Ab & Co",9,{i}' for i in range(1, 15))
GRADES = "\n".join(
    "\t".join(f'"{field}"' for field in row.split())
    for row in ("StudentID Subject Grade Semester Score", "1 Art A Fall 90", "2 Art B Fall 80", "3 Art C Fall 70")
)
BATTLES = (
    "1796-04-12, 1796-05-10, 1797-01-14, 1798-07-21, 1800-06-14, 1805-12-02, "
    "1806-10-14, 1807-02-08, 1807-06-14, 1809-07-05, 1815-06-18"
)
KEYWORDS = {f"keyword{i}": word for i, word in enumerate(("ant", "bee", "cat", "dog", "elk"), start=1)}

# id, arguments, follows, does not follow
TABLE: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "STOP right THERE.",
        "I think A is first, STOP.",
    ),
    ("change_case:english_capital", {}, "THIS IS A LOUD ANSWER.", "THIS IS a LOUD ANSWER."),
    ("change_case:english_lowercase", {}, "this is a quiet answer.", "este es un texto bastante tranquilo, amigo."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "Say hi.\n\nHi!", "Sure! Say hi.\n\nHi!"),
    ("combination:two_responses", {}, "Yes.\n******\nNo.", "Yes.\n******\nYes."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "Dear [name], at [place].", "Dear [name], see [1]."),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S. Call me.", "Bye.\nP.S. Call me."),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', '{"a": 1, "a": 2}'),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Day", "num_sections": 2},
        "**Day 1**\nRest.\n## Day 2: Work\nWork.",
        "Day 1\nRest.\nThen comes Day 2.",
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "Here:\n* one\n- two", "* one\n* two\n* three"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two**", "*one* and ** two **"),
    ("detectable_format:title", {}, "<<A Song>>\nLa.", "<A Song>\nLa."),
    ("keywords:existence", {"keywords": ["river", "old bank"]}, "The Old  bank of the river's arm.", "The old riverbank."),
    ("keywords:forbidden_words", {"forbidden_words": ["hot", "dog"]}, "Hotdogs all.", "That dog's bone."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"}, "Tea, tea.", "Tea for the team."),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 3, "let_relation": "less than"},
        "#one #two",
        "#one #two #three",
    ),
    ("language:response_language", {"language": "de"}, "Das ist ein ganz einfacher Satz auf Deutsch.", "This is an English one."),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        "One.\n\n**Weekend** plans.",
        "Weekend.\n\nOne.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "Dr. Low is in.", "Hi. Bye."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "One two three.", "One two-three."),
    ("punctuation:no_comma", {}, "One and two.", "One， two."),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, 'That is all. "Any questions?"', "Any questions? Ask me."),
    ("startend:quotation", {}, '"All of "this" is quoted."', '"Some" of this.'),
    ("count:conjunctions", {"small_n": 3}, "Tea and milk, but no sugar, so what?", "And and AND but."),
    (
        "count:keywords_multiple",
        KEYWORDS,
        "ant bee bee cat cat cat dog dog dog dog dog elk elk elk elk elk elk elk",
        "ant bee bee cat cat cat dog dog dog dog dog elk elk elk elk elk elk",
    ),
    ("count:numbers", {"N": 2}, "From 1,000 to 2.5.", "From 1 to 2 to 3."),
    ("count:person_names", {"N": 2}, "Emma's friend is Leo.", "Emma and emma and Emmanuel."),
    ("count:pronouns", {"N": 3}, "I think it's hers.", "I think so."),
    ("count:punctuation", {}, "A, b; c: d. E! F? G?!", "A, b; c: d. E! G?!"),
    ("count:unique_word_count", {"N": 3}, "One two three two.", "One two one TWO."),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "One two.", "One two three four."),
    ("count:words_japanese", {"N": 2}, "I 猫 like 犬.", "I like 猫 here."),
    ("custom:character_reverse", {}, "elgae dlab eht si tI", "It is the bald eagle"),
    ("custom:csv_city", {}, CITIES, CITIES + "\n8,France,Paris,2008,8"),
    ("custom:csv_quotes", {}, GRADES, GRADES.replace('"90"', "90")),
    ("custom:csv_special_character", {}, PRODUCTS, PRODUCTS.replace(" & ", " ")),
    ("custom:date_format_list", {}, BATTLES, BATTLES.replace("1815-06-18", "1815-06-31")),
    ("custom:european_capitals_sort", {}, CAPITALS, CAPITALS.replace("Oslo, Tallinn", "Tallinn, Oslo")),
    ("custom:mcq_count_length", {}, QUIZ, QUIZ + "\nAnswer: A, because he did."),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    ("custom:reverse_newline", {}, AFRICA, AFRICA.replace("Zambia\n", "")),
    ("custom:sentence_alphabet", {}, ALPHABET_STORY, ALPHABET_STORY.replace("Bob", "Rob")),
    ("custom:word_reverse", {}, "Eagle bald the is symbol national the.", "The national symbol is the bald eagle."),
    ("format:emoji", {}, "Hi there! 😀 Bye 👋🏽.", "Hi there! 😀 Bye."),
    ("format:line_indent", {}, STAIRS, "one\n two\n two"),
    ("format:list", {"sep": "..."}, "...one\n...two", "one...two...three"),
    ("format:newline", {}, "One\ntwo\n\nthree", "One two\nthree"),
    ("format:no_bullets_bullets", {}, "One is. Two is.\n\n* a\n* b", "One is! Two is!\n* a\n* b"),
    ("format:no_whitespace", {}, "One,two.", "One, two."),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "Yes, maybe."),
    (
        "format:output_template",
        {},
        "My Answer: yes. My Conclusion: good. Future Outlook: bright.",
        "My Conclusion: good. My Answer: yes. Future Outlook: bright.",
    ),
    ("format:parentheses", {}, "(a [b {c (d [e])}])", "(a [b {c (d e)}])"),
    ("format:quote_unquote", {}, '"Less is more" means brevity wins.', '"Less is more" "Brevity wins"'),
    ("format:quotes", {}, 'He said, "She said, \'They don\'t say "no" here\' to me."', "He said, \"She said, 'no' to me.\""),
    ("format:sub-bullets", {}, "* a\n  - b\n* c\n  - d", "* a\n  - b\n* c"),
    (
        "format:thesis",
        {},
        "# One\n<i>It holds.</i> Look why.\n# Two\n<em>So too.</em> See.",
        "# One\n<i>It holds.</i>\n# Two\nSee.",
    ),
    ("format:title_case", {}, "The Lord of the Rings Is a Long Book.", "The lord of the Rings."),
    ("ratio:overlap", {"reference_text": "a b c d e", "percentage": 50}, "a b c x", "a b c d"),
    ("ratio:sentence_balance", {}, "It is. Is it? It is!", "It is. Is it?"),
    ("ratio:sentence_type", {}, "It is. He is. Is it?", "It is. Is it?"),
    ("ratio:sentence_words", {}, "Big cats run. Two dogs sit. All ants dig.", "Big cats run. Two cats sit. All ants dig."),
    ("ratio:stop_words", {"percentage": 25}, "The tall ships sail.", "The ships of the bay."),
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem."}, "Compose a poem.", "Write a poem."),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests.", "Sure."),
    ("repeat:repeat_span", {"prompt_to_repeat": "Write a poem.", "n_start": 6, "n_end": 11}, "a poem", "Write a poem."),
    ("sentence:alliteration_increment", {}, "Cats run. Big bears eat. Six silly seals sat.", "Big bears eat. Cats run."),
    ("sentence:increment", {"small_n": 2}, "Go. Go right now.", "Go. Go now."),
    ("sentence:keyword", {"word": "tea", "N": 2}, "Hi. Have tea.", "Tea, hi. Have some."),
    ("words:alphabet", {}, "Xenia yells, zebras Amble.", "Ann bakes daily."),
    ("words:consonants", {}, "Plants grow strong.", "Plants are strong."),
    ("words:keywords_specific_position", {"keyword": "tea", "n": 2, "m": 3}, "Hi. I like tea.", "Hi. I, like, green tea."),
    ("words:last_first", {}, "I like tea. Tea is hot.", "I like tea. It is hot."),
    ("words:no_consecutive", {}, "Big cats run.", "Big brown cats."),
    ("words:odd_even_syllables", {}, "The tiger sat under trees.", "The tiger eating under trees."),
    (
        "words:palindrome",
        {},
        "level radar civic kayak refer rotor madam stats minim tenet",
        "level level level level level level level level level level",
    ),
    ("words:paragraph_last_first", {}, "Tea is my tea.\nRun, dog, run!", "Tea is my tea.\nRun, dog!"),
    ("words:prime_lengths", {}, "Big trees", "Four trees"),
    ("words:repeats", {"small_n": 2}, "Tea, tea.", "Tea, tea, TEA."),
    ("words:start_verb", {}, "Mixing works.", "The mix works."),
    ("words:vowel", {}, "A man has a plan, no?", "A queen is out."),
    ("words:words_position", {"keyword": "tea"}, "The tea is tea here.", "Tea is the tea."),
    # What IFBench's authors train on.
    ("copy:copy", {"prompt_to_repeat": "Say hi."}, "Say hi.", "Say hi. Hi."),
    ("copy:copy_span_idx", {"prompt_to_repeat": "Write a poem", "n_start": 0, "n_end": 4}, "Write", "Writ"),
    ("copy:copying_multiple", {"prompt_to_repeat": "Say hi.", "N": 2}, "Say hi.\n******\nSay hi.", "Say hi. Say hi."),
    ("copy:copying_simple", {"prompt_to_repeat": "Say hi."}, "Say hi.", "say hi"),
    (
        "copy:repeat_phrase",
        {"phrase": "the old red barn", "small_n": 2},
        "the old blue barn, then the old tall barn",
        "the old red barn, then the old tall barn",
    ),
    ("count:count_increment_word", {"keyword1": "tea", "keyword2": "sun"}, "Tea, sun, sun.", "Tea, tea, sun, sun."),
    ("count:count_unique", {}, "No word comes twice.", "No, no."),
    ("count:counting_composition", {"n_sent": 1, "n_words": 2}, "Go now.\n* * *\nRun home.\n***\nSit down.", "Go now. Run home."),
    ("count:lowercase_counting", {"N": 2}, "TEA is HOT and RED", "tea is hot"),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> <<at home>> <<now>>", "<<I am>> at <<home now>>"),
    ("detectable_format:sentence_hyphens", {}, "It is hot.-We sit.-We sleep.", "It is hot. We sit."),
    ("detectable_format:square_brackets", {}, "[Tea] [is] [hot].", "[Tea is] [hot]."),
    ("first_word:first_word_answer", {"first_word": "tea"}, "Tea is hot. It is.", "Hot tea."),
    ("first_word:first_word_sent", {"first_word": "tea"}, "Tea is hot. Tea is red.", "Tea is hot. It is red."),
    ("keywords:exclude_word_harder", {"keyword": "tea"}, "Teas and teapots.", "Some tea."),
    ("keywords:keyword_specific_position", {"keyword": "tea", "n": 2, "m": 3}, "Hi. I like tea.", "Hi. I like green tea."),
    ("keywords:no_adjacent_consecutive", {}, "All cats eat.", "All birds eat."),
    ("keywords:palindrome", {}, "The radar is on.", "The aaa is on."),
    ("keywords:start_end", {}, "Tea is my tea", "Tea is my tea."),
    ("keywords:word_count_different_numbers", {"keyword": "tea", "relation": "at least", "frequency": 2}, "Tea, tea.", "Tea."),
    ("keywords:word_once", {"keyword": "tea"}, "Hot tea.", "Tea, tea."),
    ("last_word:last_word_answer", {"last_word": "tea"}, "It is hot. I like tea.", "Tea is hot."),
    ("last_word:last_word_sent", {"last_word": "tea"}, "I like tea. We drink tea!", "I like tea. It is hot."),
    ("letters:letter_counting", {"N": 5, "relation": "less than"}, "tea 123456", "teapot"),
    ("letters:letter_counting2", {"letter": "e", "let_frequency": 2, "let_relation": "at least"}, "Eve", "tea"),
    ("paragraphs:paragraphs", {}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("paragraphs:paragraphs2", {}, "One.\n\nTwo.", "One.\nTwo."),
    ("punctuation:punctuation_dot", {}, "Hi!", "Hi."),
    ("punctuation:punctuation_exclamation", {}, "Hi.", "Hi!"),
]
