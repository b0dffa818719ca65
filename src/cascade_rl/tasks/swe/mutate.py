"""Faults for small repositories: one place of a function's syntax tree changed, so that the code still reads as code.

mutants("def f(x):\\n    return x + 1", random.Random(0))[0] == "def f(x):\\n    return x - 1"
"""

import ast
import copy
import random
from collections.abc import Iterator

_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,),
    ast.Lt: (ast.LtE, ast.Gt), ast.Gt: (ast.GtE, ast.Lt), ast.LtE: (ast.Lt,), ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "any": "all", "all": "any", "append": "extend", "upper": "lower", "lower": "upper"}


def mutants(code: str, rng: random.Random) -> list[str]:
    """The code with one place changed, for each place, in an order of the generator's; both sides as `ast.unparse` writes them.

    Raises SyntaxError.
    """
    tree = ast.parse(code)
    found = list(dict.fromkeys(text for text in _all(tree) if text != ast.unparse(tree)))
    rng.shuffle(found)
    return found


def _all(tree: ast.Module) -> Iterator[str]:
    for number, node in enumerate(ast.walk(tree)):
        for change in range(_num_changes(node)):
            changed = copy.deepcopy(tree)
            _change(next(n for i, n in enumerate(ast.walk(changed)) if i == number), change)
            yield ast.unparse(changed)


def _num_changes(node: ast.AST) -> int:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        return len(_OPERATORS.get(type(node.op), ()))
    if isinstance(node, ast.Compare):
        return len(_OPERATORS.get(type(node.ops[0]), ()))
    if isinstance(node, ast.Constant):
        return 2 if type(node.value) is int else int(type(node.value) is bool)
    if isinstance(node, ast.UnaryOp):
        return int(isinstance(node.op, ast.Not))
    if isinstance(node, ast.If):
        return 1
    return int((isinstance(node, ast.Name) and node.id in _NAMES) or (isinstance(node, ast.Attribute) and node.attr in _NAMES))


def _change(node: ast.AST, change: int) -> None:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        node.op = _OPERATORS[type(node.op)][change]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = _OPERATORS[type(node.ops[0])][change]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if type(node.value) is bool else node.value + (1, -1)[change]  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)  # not not x
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Name):
        node.id = _NAMES[node.id]
    elif isinstance(node, ast.Attribute):
        node.attr = _NAMES[node.attr]
