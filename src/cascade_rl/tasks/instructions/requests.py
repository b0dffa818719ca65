"""What a composed prompt asks for, before any instruction: a form, a subject and now and then a manner, all in words of our own."""

import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Request:
    """`Request("Write a riddle about a lost umbrella.", "a lost umbrella", "text")`.

    kind: "text" asks for some text, "question" can be answered with yes, no or maybe.
    """

    text: str
    subject: str
    kind: Literal["text", "question"]


def _list(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


SUBJECTS = _list("""
    a lost umbrella; a lighthouse in winter; the smell of rain; a bicycle with three gears; an old stone bridge; the last train home;
    a noisy neighbour; a village bakery; the first frost; a cat that hates Mondays; a robot gardener; the night sky; a broken clock;
    a wooden boat; a family of hedgehogs; the town library; a rooftop garden; a forgotten birthday; a long bus ride; a hand-knitted
    scarf; an empty theatre; the sound of bells; a paper kite; a snail race; a mountain hut; a jar of honey; an honest thief; a sleepy
    watchman; the price of coffee; a haunted elevator; a friendly ghost; a spelling contest; a rainy football match; a missing sock;
    a talking parrot; a plate of dumplings; a school trip; a new pair of glasses; the color green; a chess club; a street musician;
    a power cut; a summer storm; a slow computer; an underground cave; a desert caravan; a polite dragon; a tiny apartment; a city
    without cars; a wedding cake; a flat tire; a pond full of frogs; the invention of paper; the history of bread; the life of bees;
    how glaciers move; the planet Saturn; volcanoes; the water cycle; magnets; the human heart; tides; earthworms; solar panels;
    photosynthesis; the moons of Jupiter; coral reefs; owls; river otters; penguins; the migration of storks; tectonic plates; sleep;
    memory; vitamins; gravity; clouds; lightning; batteries; compost; wind turbines; the printing press; canals; medieval castles;
    ancient Rome; the Silk Road; the Olympic Games; jazz; the violin; pottery; origami; watercolor painting; black and white films;
    a marathon; table tennis; mountain biking; ice skating; rock climbing; swimming lessons; a yoga class; a camping trip; a road trip
    through Portugal; a weekend in Vienna; a visit to Kyoto; a market in Marrakesh; the beaches of Brazil; a ferry to Iceland;
    a hike in the Alps; a museum of toys; remote work; job interviews; a pay rise; a late delivery; a rude waiter; a noisy hotel room;
    a lost suitcase; a cancelled flight; a broken washing machine; an unpaid invoice; a new office chair; a team lunch; a staff
    meeting; a startup that rents tents; an app for plant lovers; a shop for used books; a bakery for dogs; a café on a boat; online
    shopping; video games; social media; smartphones in class; homework; school uniforms; public transport; bicycle lanes; plastic
    bags; zoos; fast food; vegetable soup; pancakes; spicy noodles; apple pie; green tea; fresh pasta; chocolate; breakfast; a picnic
    by the lake; a surprise party; a first date; an old friend; a kind stranger; grandparents; twins; a new baby; a shy student;
    a strict teacher; a retired sailor; a young inventor; a nervous pilot; a clever fox; a lazy lion; a brave mouse; a curious goat;
    honesty; patience; courage; jealousy; boredom; silence; luck; time; money; friendship; teamwork; a good night of sleep; a messy
    desk; learning a language; learning to drive; saving money; growing tomatoes; keeping a diary; baking bread; fixing a bicycle;
    moving to a new city; adopting a dog; quitting sugar; reading more books; waking up early; cleaning the kitchen; planning a
    budget; writing a novel; taking photographs; playing the guitar; a treasure map; a message in a bottle; a secret door; a magic
    pencil; a time machine; a city under the sea; the last dinosaur; a queen who cannot sleep; a planet made of glass; the moon
    landing; steam engines; hot air balloons; submarines; telescopes; maps; calendars; the alphabet; numbers; zero
    """)

ACTIVITIES = _list("""
    keep a diary; learn to cook; get up before sunrise; grow herbs at home; repair old clothes; walk to work; learn two languages at
    once; travel alone; sell a car online; adopt an old cat; start a book club; swim in cold water; read before bed; save a tenth of
    every pay; leave a party early; lend money to a friend; plan every weekend; bake without sugar; run a small shop; write letters
    by hand; paint a room yellow; sleep with the window open; eat breakfast in bed; study in the evening; share a flat with strangers;
    keep bees in a city; build a tree house; ride a bicycle in the rain; drink tea without milk; take a nap after lunch; buy used
    furniture; ask for a discount; change jobs in spring; learn the piano at sixty; cut one's own hair; give a speech without notes;
    take a cold shower; wear a hat indoors; cook for twenty guests; train for a marathon; clean windows with vinegar; teach a parrot
    to talk; sing in a choir; collect old coins; visit a museum every month; skip dinner; turn off the phone at night; carry cash;
    grow potatoes on a balcony; take a gap year; keep a goldfish; live on a boat; work on Sundays; play chess by mail; learn to juggle;
    write a will; move to a village; volunteer at a shelter; pick wild mushrooms; fix a leaking tap; remember names; fall asleep
    faster; prepare for an exam; make new friends; pack a small suitcase; speak in public; stop biting one's nails; choose a laptop;
    brew good coffee; draw a face; train a puppy; sharpen a knife; remove a stain; plan a birthday party; organise a bookshelf
    """)

_WRITE = _list("""
    Write a {m} poem about {s}; Write a {m} short story about {s}; Write a {m} limerick about {s}; Write a {m} haiku about {s}; Write a
    {m} tweet about {s}; Write a {m} slogan for {s}; Write a {m} riddle whose answer has to do with {s}; Write a {m} joke about {s};
    Write a {m} song about {s}; Write a {m} paragraph about {s}; Write a {m} letter about {s}; Write a {m} email to a colleague about
    {s}; Write a {m} blog post about {s}; Write a {m} essay about {s}; Write a {m} review of {s}; Write a {m} advertisement for {s};
    Write a {m} diary entry about {s}; Write a {m} speech about {s}; Write a {m} dialogue between two friends about {s}; Write a {m}
    product description for {s}; Write a {m} headline and a first sentence about {s}; Write a {m} summary of what is known about {s};
    Write a {m} thank-you note that mentions {s}; Write a {m} complaint about {s}; Write a {m} invitation that has to do with {s};
    Write a {m} cover letter that mentions {s}; Write a {m} quiz question on {s}; Write a {m} caption for a picture of {s}; Write a
    {m} opening line for a novel about {s}; Write a {m} rap about {s}; Write a {m} toast on {s}; Write a {m} answer to a child who asks
    about {s}; Write a {m} note to a landlord about {s}; Write a {m} plot for a film about {s}; Write a {m} proposal that deals with
    {s}; Write a {m} postcard about {s}
    """)
_ASK = _list("""
    Tell me about {s}.; What comes to your mind when you think of {s}?; Describe {s} to someone who has never heard of it.; Explain
    {s} in plain words.; Why do people care about {s}?; Give me a few facts about {s}.; What should everybody know about {s}?; Name
    some good and bad sides of {s}.; I have to give a talk on {s}. Help me to begin.; Can you help me understand {s}?; Give me ideas
    for a name of a magazine about {s}.; My friend never stops talking about {s}. What could I say?; Invent a proverb about {s}.;
    Compare {s} with something unexpected.; What would a pirate say about {s}?; Describe {s} from the point of view of a cat.;
    What is the best thing about {s}?; Make up a short news report about {s}.; How would you explain {s} to a young child?; Come up
    with three questions about {s}.; Recommend something to a person who is interested in {s}.; Give me a summary of {s}.; List
    some words that fit {s}.; Rewrite this in a livelier way: "I often think about {s}."; Expand this into a text: "Nobody forgets
    {s}."; Finish the sentence "There is nothing like {s} because ..." and say more.
    """)
_HOW = _list("""
    How do I {a}?; Give me advice: I want to {a}.; Explain how to {a}.; Write a {m} guide for people who want to {a}.; What do I need
    to {a}?; My brother wants to {a}. What should I tell him?; Tell me why someone would {a}.; Write a {m} message to a friend who
    plans to {a}.; Describe the first attempt of a person to {a}.; Make a plan for a beginner who would like to {a}.; What can go
    wrong when you {a}?; Write a {m} story about somebody who tries to {a}.; Persuade me to {a}.; Give reasons against the plan to
    {a}.; Write a {m} poem about a man who decides to {a}.
    """)
_WHETHER = _list("""
    Is it a good idea to {a}?; Should I {a}?; Would you {a} if you could?; Do most people like to {a}?; Is it hard to {a}?; Does it
    pay to {a}?; Can anybody {a}?; Is it healthy to {a}?; Do you think that one ought to {a}?; Will it make me happier to {a}?;
    Is now a good time to {a}?; Is it rude to {a}?
    """)
_MANNERS = _list("""
    short; funny; serious; strange; formal; friendly; angry; cheerful; sad; simple; poetic; dramatic; polite; surprising; very short;
    two-line; lively; thoughtful; sarcastic; clear
    """)
_READERS = _list("""
    for children; for teenagers; for tourists; for a friend; for my teacher; for busy parents; for beginners; for engineers; for my
    grandmother; for a newspaper
    """)


def draw_request(rng: random.Random, question: bool = False) -> Request:
    """A request of any form, or (`question`) one to be answered with yes, no or maybe."""
    if question:
        activity = rng.choice(ACTIVITIES)
        return Request(rng.choice(_WHETHER).format(a=activity), activity, "question")
    manner = rng.choice(_MANNERS) if rng.random() < 0.7 else ""
    which = rng.random()
    if which < 0.5:
        subject, reader = rng.choice(SUBJECTS), f" {rng.choice(_READERS)}" if rng.random() < 0.2 else ""
        text = f"{rng.choice(_WRITE).format(m=manner, s=subject)}{reader}."
    elif which < 0.8:
        subject = rng.choice(SUBJECTS)
        text = rng.choice(_ASK).format(s=subject)
    else:
        subject = rng.choice(ACTIVITIES)
        text = rng.choice(_HOW).format(m=manner, a=subject)
    return Request(_tidy(text), subject, "text")


def _tidy(text: str) -> str:
    """One space where a manner was left out, and "an" before a vowel: "Write a  essay" becomes "Write an essay"."""
    words = text.split()
    for i, word in enumerate(words[:-1]):
        if word == "a" and words[i + 1][0] in "aeio":
            words[i] = "an"
    return " ".join(words)
