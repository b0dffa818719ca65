"""Small word lists for the instruction checks: facts of English and of the world, so that nothing is downloaded."""


def _list(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONJUNCTIONS = _set("for and nor but or yet so")

STOP_WORDS = _set("""
    a about above after again against all am an and any are aren't as at be because been before being below between both but
    by can can't could couldn't did didn't do does doesn't doing don't down during each few for from further had hadn't has
    hasn't have haven't having he he'd he'll he's her here hers herself him himself his how i i'd i'll i'm i've if in into is
    isn't it it'd it'll it's its itself just let's me might more most must mustn't my myself needn't no nor not now of off on
    once only or other our ours ourselves out over own same shall shan't she she'd she'll she's should shouldn't so some such
    than that that's the their theirs them themselves then there there's these they they'd they'll they're they've this those
    through to too under until up very was wasn't we we'd we'll we're we've were weren't what when where which while who whom
    whose why will with won't would wouldn't you you'd you'll you're you've your yours yourself yourselves
    """)

PERSONAL_PRONOUNS = _set("""
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
    its itself they them their theirs themselves
    """)
PRONOUNS = PERSONAL_PRONOUNS | _set("""
    themself oneself someone somebody something anyone anybody anything everyone everybody everything nobody nothing who whom
    whose whoever
    """)

# The fifty names that the instruction itself lists.
PERSON_NAMES = _list("""
    Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin Harper Leo Zoe
    Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas
    Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
    """)

# Words that title case leaves small inside a line.
MINOR_WORDS = _set("""
    a an the and but or nor for so yet as at by in of off on per to up via from into like near onto over past than upon with
    if vs within without before after down out through under between about against among around behind during until
    """)

_BASE_VERBS = _set("""
    accept access achieve act adapt add address adjust admire admit adopt advance advise agree aim align allow analyze answer
    apply approach appreciate arrange arrive ask assemble assess assign assist assume attach attempt attend avoid awake awaken
    back bake balance be bear beat become beg begin behold believe bend bet blend boil boost borrow bow break breathe bring
    brush build burn buy calculate call calm capture care carry cast catch celebrate challenge change charge chase check
    choose chop claim clean clear click climb close coat collect color combine come comfort compare complete compose compute
    concentrate conclude conduct confirm connect consider construct contact contain continue contribute convert convince cook
    cool copy count cover craft create cross crush cry cultivate cut dance dare deal decide declare define delete deliver
    delve demonstrate deny describe deserve design destroy determine develop die dig discover discuss display divide do doubt
    draft drag draw dream dress drink drive drop dry earn eat edit embark embrace emerge employ empower enable encourage end
    engage enhance enjoy ensure enter escape establish estimate evaluate examine exist expand expect experience explain
    explore express extend face fail fall feature feed feel fetch fight figure fill find finish fix flip float flow fly focus
    fold follow forget forgive form fry gain gather generate get give glance go grab grant grasp greet grind grow guess guide
    hand handle hang happen harness hear heat help hide hire hit hold honor hop hope host hurry identify ignite ignore
    illustrate imagine implement import improve include incorporate increase inform initialize insert inspect inspire install
    integrate introduce invest investigate invite involve join judge jump keep kick kiss knead kneel knit knock know label
    laugh launch lay lead lean learn leave lend let leverage lie lift light limit link list listen live load locate look lose
    love lower maintain make manage map mark master match matter mean measure meet melt memorize mention mix monitor move
    multiply name navigate need note notice nurture obey observe obtain offer open operate optimize order organize outline
    overcome own pack paint pass pause pay perform pick picture place plan plant play ponder pour practice praise pray prepare
    present preserve press prevent print prioritize proceed process produce promote protect prove provide publish pull push
    put question raise reach read realize recall receive recognize recommend record reduce refer reflect refuse regard relax
    release rely remain remember remind remove repeat replace reply report represent request require research resolve respect
    respond rest restore return reveal review ride ring rinse rise roast roll run save say scale scan schedule search season
    see seek seem select sell send separate serve set shake shape share shine show shut sift simplify sing sit skip sleep
    slice slide smell smile solve sort sound speak spend split spread spring sprinkle stand start state stay steal step stick
    stir stop store strengthen strike strive study submit subtract succeed suggest summarize support suppose surround survive
    sweep swim swing take talk taste teach tell test thank think throw tie touch track train transform translate travel treat
    trust try turn type understand unleash unlock unveil update upload use utilize value verify view visit vote wait wake walk
    wander want warm warn wash watch wave wear weave welcome whisk whisper win wish witness wonder work worry wrap write yield
    """)
_OTHER_VERBS = _set("""
    am is are was were been being has have had does did done went gone came became began begun broke brought built bought
    caught chose chosen drew drawn drove driven ate eaten fell felt fought found flew forgot gave given got grew grown had
    heard held kept knew known laid led left lent lost made meant met paid ran rang read rose said sang sat saw seen sent
    shook shone showed slept sold sought spent spoke stood stole stuck swam swept taken took taught told thought threw thrown
    understood woke won wore written wrote isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't let's dying
    lying tying
    """)


def is_verb(word: str) -> bool:
    """Whether a word can be a verb: a common verb or a regular form of one (-s, -ed, -ing)."""
    word = word.casefold().replace("’", "'")
    if word in _BASE_VERBS or word in _OTHER_VERBS:
        return True
    return any(stem in _BASE_VERBS for stem in _stems(word))


_ENDINGS = (("ies", ["y"]), ("ied", ["y"]), ("es", ["", "e"]), ("s", [""]), ("ed", ["", "e"]), ("ing", ["", "e"]))


def _stems(word: str) -> list[str]:
    for ending, swaps in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word[: -len(ending)]
            doubled = [stem[:-1]] if ending in {"ed", "ing"} and stem[-1:] == stem[-2:-1] else []
            return [stem + swap for swap in swaps] + doubled
    return []


def syllables(word: str) -> int:
    """Syllables of an English word by its vowel groups: "table" 2, "like" 1, "walked" 1, "wanted" 2; at least 1."""
    letters = "".join(char for char in word.casefold() if char.isalpha())
    groups = sum(char in "aeiouy" and (i == 0 or letters[i - 1] not in "aeiouy") for i, char in enumerate(letters))
    vowel_before = len(letters) > 2 and letters[-3] in "aeiouy"
    if letters.endswith("e") and not letters.endswith(("ee", "ie", "oe", "ye", "ue")):
        groups -= not letters.endswith("le") or vowel_before
    elif len(letters) > 3 and letters[-3] not in {"ed": "tdaeiouy", "es": "szxcghaeiouy"}.get(letters[-2:], letters):
        groups -= 1  # walked, makes; but wanted, boxes
    return max(groups, 1)


# Capitals of European states north of 45 degrees, from north to south. Kyiv lies at 50.45; the published list leaves it out.
EUROPEAN_CAPITALS = _list("""
    Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw London
    Brussels Kyiv Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb
    """)

# The 54 states of Africa; other usual names for one stand behind it.
AFRICAN_STATES = tuple(
    tuple(name.strip() for name in names.split("|"))
    for names in _list(
        """algeria;angola;benin;botswana;burkina faso;burundi;cabo verde|cape verde;cameroon;central african republic;chad;
        comoros;democratic republic of the congo|congo democratic republic of the|dr congo|congo kinshasa|drc|
        democratic republic of congo|congo democratic republic;republic of the congo|congo|congo brazzaville|congo republic|
        republic of congo;djibouti;egypt;equatorial guinea;eritrea;eswatini|swaziland;ethiopia;gabon;gambia|the gambia;ghana;
        guinea;guinea bissau;ivory coast|cote d ivoire;kenya;lesotho;liberia;libya;madagascar;malawi;mali;mauritania;mauritius;
        morocco;mozambique;namibia;niger;nigeria;rwanda;sao tome and principe|sao tome principe;senegal;seychelles;sierra leone;
        somalia;south africa;south sudan;sudan;tanzania;togo;tunisia;uganda;zambia;zimbabwe""",
        ";",
    )
)
