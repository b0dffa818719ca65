"""Open chat with a hidden preference: greet back, stay on the topic, close politely, keep it short.

The rule is nowhere in the prompt; a model learns it from demonstrations or from rewards. A judge can take the rule's place.
"""

import random
import re
from dataclasses import dataclass
from typing import ClassVar

from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.nano.words import NAMES

# What is asked about, the sentence that explains it, and the words that show that the answer is about it.
TOPICS = (
    ("why rain falls", "Rain falls when clouds are full of water.", ("rain", "clouds")),
    ("why the sky is blue", "The sky is blue because air scatters blue light.", ("sky", "light")),
    ("how bread is made", "Bread is made of flour and water.", ("bread", "flour")),
    ("why we sleep", "We sleep so that we can rest.", ("sleep", "rest")),
    ("how birds fly", "Birds fly with their light wings.", ("birds", "wings")),
    ("why ice is cold", "Ice is cold because it is frozen water.", ("ice", "frozen")),
    ("how a boat floats", "A boat floats because it pushes water away.", ("boat", "water")),
    ("why a tree is green", "A tree is green because it needs the light of the sun.", ("tree", "sun")),
    ("why the moon is bright", "The moon is bright because the sun lights it.", ("moon", "sun")),
    ("why the sea is salty", "The sea is salty because rivers bring salt.", ("sea", "salt")),
)
GREETINGS = ("Hi", "Hello", "Good day", "Hey")
_ASKS = ("Can you tell me {topic}?", "Please explain {topic}.", "Do you know {topic}?", "I want to know {topic}.", "Say {topic}.")
_ENDS = ("", " Thanks.", " Be short.")
CLOSES = ("Have a nice day!", "Take care!", "Ask me any time!", "I am glad to help!")
_CLOSE_WORDS = re.compile(r"\b(nice day|take care|any time|glad to help|you are welcome|bye)\b", re.IGNORECASE)
_HELLO = re.compile(r"\b(hi|hello|hey|good day)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ChatTask(DrawnTask):
    """`"Hi, I am Mia. Please explain why rain falls."` is best answered by name, on the topic, politely and shortly.

    greeting_share: the share of prompts that greet.
    thinking_share: the share of prompts in thinking mode, where `thinking` is on.
    max_words: what still counts as short.
    The reward is the share of the rules kept, and nothing where the answer is off its topic.
    """

    greeting_share: float = 0.6
    thinking_share: float = 0.25
    max_words: int = 24

    name: str = "nano.chat"
    domain: str = "chat"
    metric: ClassVar[str] = "rules_kept"

    def draw(self, rng: random.Random) -> Draft:
        topic, explanation, words = rng.choice(TOPICS)
        greeted = rng.random() < self.greeting_share
        person = rng.choice(NAMES)
        opening = f"{rng.choice(GREETINGS)}, I am {person}." if greeted else f"{person} asks."
        question = f"{opening} {rng.choice(_ASKS).format(topic=topic)}{rng.choice(_ENDS)}"
        hello = f"{rng.choice(GREETINGS)} {person}! " if greeted else ""
        content = f"{hello}{explanation} {rng.choice(CLOSES)}"
        thinks = self.thinking and rng.random() < self.thinking_share
        thinking = f"{person} greets me. " if greeted else "No greeting. "
        gold = Message("assistant", content, thinking=f"{thinking}Topic: {words[0]} and {words[1]}." if thinks else None)
        reference = {"greet": person if greeted else None, "words": list(words)}
        return Draft([topic, person, greeted], question, (gold,), reference, thinks)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        reference = rollout.prompt.reference
        said = set(re.findall(r"\w+", answer.casefold()))
        missing = [word for word in reference["words"] if word not in said]
        if missing:
            return Reward(0.0, {"on_topic": 0.0}, f"off the topic: no {' and no '.join(missing)}")
        person = reference["greet"]
        hello = _HELLO.search(answer[:20])
        rules = {
            "on_topic": True,
            "greets": bool(hello) and person.casefold() in said if person else not hello,
            "closes": bool(_CLOSE_WORDS.search(answer[-40:])),
            "short": len(answer.split()) <= self.max_words,
        }
        broken = [rule for rule, kept in rules.items() if not kept]
        parts = {rule: float(kept) for rule, kept in rules.items()}
        return Reward(sum(parts.values()) / len(parts), parts, f"not kept: {', '.join(broken)}" if broken else "all rules kept")
