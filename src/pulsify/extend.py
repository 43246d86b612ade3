"""The door for operators of other domains: what to write a rule with.

define("acme::Boost", shapes=..., body=...)          # core/custom.py: shapes, and what it is made of

@rule("acme::Boost", says="frame by frame")          # how it is streamed
def boost(ctx: Context, node: Node) -> Plan | None:
    return pointwise(ctx, node)
"""

from __future__ import annotations

import pulsify.ops  # noqa: F401  the rules that are there come first
from pulsify.analysis.facts import Layout, Window, Wire
from pulsify.core.custom import Shaped, define
from pulsify.core.reach import Reach
from pulsify.frontend.model import Node
from pulsify.ops.pointwise import clone, pointwise
from pulsify.ops.registry import rule
from pulsify.plan.boundary import Fill
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read

__all__ = [
    "Context", "Fill", "Layout", "Node", "Plan", "Reach", "Read", "Shaped", "Window", "Wire", "clone", "define",
    "pointwise", "rule",
]  # fmt: skip
