"""A JSON object for a given schema, filled from a sentence of facts."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl import strict_json
from cascade_rl.errors import RecipeError
from cascade_rl.grade.schema import compile_schema, grade_json
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask, quote
from cascade_rl.tasks.nano.words import CITIES, COLORS, DAYS, FOODS, NAMES, THINGS

_ASKS = ("Give JSON for", "Answer in JSON for", "Fill in", "Write JSON for")


@dataclass(frozen=True, kw_only=True)
class SchemaTask(DrawnTask):
    """`"Mia is 7 and lives in Rome. Give JSON for {...}"` asks for `{"name": "Mia", "age": 7}` where the schema has these two.

    max_fields: how many properties a schema may have (1 to 4). The sentences tell more than the schema asks for. list_share: the
    share of objects whose facts hold a list. label_share: the share of sentences that name each fact by its field ("city: Rome"),
    where filling the object is plain copying; in the others the model has to know which of the words is a city.
    """

    max_fields: int = 3
    list_share: float = 0.25
    label_share: float = 0.4

    name: str = "nano.schema"
    domain: str = "schema"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_fields <= 4:
            raise RecipeError(f'task "{self.name}": max_fields {self.max_fields} must be 1 to 4')

    def draw(self, rng: random.Random) -> Draft:
        draw = _with_list if rng.random() < self.list_share else rng.choice((_person, _order, _trip))
        sentence, facts = draw(rng)
        if rng.random() < self.label_share:
            sentence = _labelled(rng, facts)
        num = rng.randint(1, min(self.max_fields, len(facts)))
        fields = rng.sample(sorted(facts), num)
        schema = {
            "type": "object",
            "properties": {field: _type_of(field, facts[field]) for field in fields},
            "required": fields,
        }
        wanted = {field: facts[field] for field in fields}
        question = f"{sentence}\n{rng.choice(_ASKS)} {json.dumps(schema)}"
        gold = Message("assistant", json.dumps(wanted))
        return Draft([facts, sorted(fields)], question, (gold,), {"schema": schema, "values": wanted}, False)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        schema, wanted = rollout.prompt.reference["schema"], rollout.prompt.reference["values"]
        valid = grade_json(answer, compile_schema(schema, rollout.prompt.id), allow_fence=False)
        if valid.value != 1.0:
            return valid
        found = strict_json.loads(answer)
        both = found.keys() & wanted.keys()
        wrong = sorted((found.keys() ^ wanted.keys()) | {key for key in both if not strict_json.same(found[key], wanted[key])})
        parts = {**valid.parts, "values": float(not wrong)}
        return Reward(
            float(not wrong), parts, f"not what the text says: {quote(', '.join(wrong))}" if wrong else "valid and true"
        )


def _labelled(rng: random.Random, facts: Mapping[str, Any]) -> str:
    """Each fact behind its field, in any order: `"age: 7, city: Rome, name: Mia."`"""
    fields = rng.sample(sorted(facts), len(facts))
    return ", ".join(f"{field}: {json.dumps(facts[field])}" for field in fields).replace('"', "") + "."


def _type_of(field: str, value: Any) -> dict[str, Any]:
    """The JSON schema of a value: bool before int, since a bool is an int in Python."""
    if field == "color":
        return {"enum": list(COLORS)}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"}
    return {"type": "array"} if isinstance(value, list) else {"type": "string"}


def _person(rng: random.Random) -> tuple[str, dict[str, Any]]:
    facts = {"name": rng.choice(NAMES), "age": rng.randint(5, 80), "city": rng.choice(CITIES), "happy": rng.random() < 0.5}
    mood = "is happy" if facts["happy"] else "is not happy"
    forms = (
        "{name} is {age} years old, lives in {city} and {mood}.",
        "{name} from {city} {mood} at the age of {age}.",
        "In {city} lives {name}, who is {age} and {mood}.",
    )
    return rng.choice(forms).format(**facts, mood=mood), facts


def _order(rng: random.Random) -> tuple[str, dict[str, Any]]:
    facts = {"item": rng.choice(THINGS), "price": rng.randint(2, 60), "color": rng.choice(COLORS), "paid": rng.random() < 0.5}
    paid = "is paid" if facts["paid"] else "is not paid"
    forms = (
        "A {color} {item} costs {price} coins and {paid}.",
        "The {item} is {color}, {paid} and costs {price}.",
        "For {price} coins there is a {color} {item}, which {paid}.",
    )
    text = rng.choice(forms)
    return text.format(**{**facts, "paid": paid}), facts


def _trip(rng: random.Random) -> tuple[str, dict[str, Any]]:
    facts = {"name": rng.choice(NAMES), "city": rng.choice(CITIES), "day": rng.choice(DAYS), "nights": rng.randint(1, 20)}
    forms = (
        "{name} goes to {city} on {day} for {nights} nights.",
        "On {day} {name} goes to {city} and stays {nights} nights.",
        "A stay of {nights} nights in {city} from {day} is for {name}.",
    )
    return rng.choice(forms).format(**facts), facts


def _with_list(rng: random.Random) -> tuple[str, dict[str, Any]]:
    facts = {
        "name": rng.choice(NAMES),
        "foods": rng.sample(FOODS, rng.randint(2, 3)),
        "price": rng.randint(2, 60),
        "day": rng.choice(DAYS),
    }
    listed = ", ".join(facts["foods"][:-1]) + " and " + facts["foods"][-1]
    forms = (
        "{name} buys {listed} for {price} coins on {day}.",
        "On {day} {name} pays {price} coins for {listed}.",
    )
    return rng.choice(forms).format(**facts, listed=listed), facts
