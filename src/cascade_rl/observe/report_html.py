"""HTML as values: text is escaped unless it is already `Html`, so that nothing a model wrote can become markup."""

import html
import json
from typing import Any


class Html(str):
    """Markup that is safe to put into a page as it stands."""

    __slots__ = ()


def tag(name: str, *children: "str | Html | None", **attributes: "str | int | float | bool | None") -> Html:
    """`tag("td", "a < b", class_="cell", data_task="math")` is `<td class="cell" data-task="math">a &lt; b</td>`.

    Attributes that are None or False are left out, True stands alone; children that are None are left out.
    """
    shown = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown += f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"'
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: "str | Html | None") -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children if child is not None))


def embedded_json(value: Any) -> Html:
    """JSON that can stand inside a script element whatever its strings hold: no `<`, `>` or `&` is left as such."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def number(value: float, digits: int = 4) -> str:
    """Significant digits, thousands separated, no padding: 1.234, 2e-05, 12,345."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    if 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits - 2}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def large(value: float) -> str:
    """1.2M, 34k, 560."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """42 s, 12 min 5 s, 3 h 4 min."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute} min"
    return f"{minute} min {second} s" if minute else f"{second} s"
