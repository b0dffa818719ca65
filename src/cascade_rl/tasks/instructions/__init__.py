"""Instruction following on prompts that are composed, not collected: a request in our own words and one to three instructions.

Hundreds of thousands of requests, 25 kinds of instructions (IFEval's), no prompt of IFEval among them; graded by code alone.
"""

from cascade_rl.tasks.instructions.task import Instructions

__all__ = ["Instructions"]
