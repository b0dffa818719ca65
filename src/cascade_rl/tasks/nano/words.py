"""The small stock of words that all nine tasks draw from: a model of a few million parameters must know every one of them."""

NAMES: tuple[str, ...] = ("Mia", "Tom", "Ana", "Ben", "Eva", "Max")
THINGS: tuple[str, ...] = ("pen", "cup", "book", "key", "hat")
FOODS: tuple[str, ...] = ("egg", "plum", "pear")
COLORS: tuple[str, ...] = ("red", "blue", "green", "black")
CITIES: tuple[str, ...] = ("Rome", "Oslo", "Lima", "Bonn")
DAYS: tuple[str, ...] = ("Monday", "Tuesday", "Friday", "Sunday")
EVENTS: tuple[str, ...] = ("music", "chess", "lunch", "yoga")

# What answers copy from prompts; the tokenizer learns each as one token, with and without a blank before it.
COPIED: tuple[str, ...] = (*NAMES, *THINGS, *FOODS, *COLORS, *CITIES, *DAYS, *EVENTS)


def plural(noun: str, count: int = 2) -> str:
    """`plural("pen", 1)` is "pen", otherwise "pens"; every noun above takes a plain s."""
    return noun if count == 1 else noun + "s"
