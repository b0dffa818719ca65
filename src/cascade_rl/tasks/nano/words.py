"""The small stock of words that all nine tasks draw from: a model of a few million parameters must know every one of them."""

NAMES: tuple[str, ...] = (
    "Mia",
    "Tom",
    "Ana",
    "Ben",
    "Eva",
    "Leo",
    "Ida",
    "Max",
    "Zoe",
    "Sam",
    "Lia",
    "Kim",
    "Amy",
    "Dan",
    "Eli",
    "Joy",
)
THINGS: tuple[str, ...] = ("pen", "cup", "book", "lamp", "ball", "key", "hat", "coin", "ring", "bell", "map", "shell")
FOODS: tuple[str, ...] = ("apple", "egg", "cake", "plum", "roll", "pear")
COLORS: tuple[str, ...] = ("red", "blue", "green", "black", "white", "pink")
CITIES: tuple[str, ...] = ("Rome", "Oslo", "Paris", "Lima", "Cairo", "Delhi", "Bonn", "Kyoto")
DAYS: tuple[str, ...] = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def plural(noun: str, count: int = 2) -> str:
    """`plural("pen", 1)` is "pen", otherwise "pens"; every noun above takes a plain s."""
    return noun if count == 1 else noun + "s"
