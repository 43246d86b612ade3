"""One file per operator family; importing the package fills the registry."""

from pulsify.ops import (  # noqa: F401
    axes,
    concat,
    conv,
    expand,
    gather,
    gather_nd,
    matmul,
    overlap,
    pad,
    pointwise,
    pool,
    prefix,
    quantize,
    range,
    recurrent,
    reshape,
    resize,
    scan,
    slice,
    spectral,
)
