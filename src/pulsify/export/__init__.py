"""What a stream is written as: one file here for each target, chosen by name (`registry.py`).

`pulsify.export` is this package, and it is also the function of the same name.
"""

from __future__ import annotations

from pulsify.core.callable import callable_as_function

callable_as_function(__name__)
