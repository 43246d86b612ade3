"""The NeMo toolkit's own streaming export of the same encoder with the same weights, for `benchmarks.fastconformer`.

    python -m benchmarks.toolkit --size small --context 70,13 toolkit.onnx

Runs where nemo_toolkit[asr] is installed; the file it writes needs ONNX Runtime only. Its step takes the chunk's
frames with some before them and makes the tokens of those again, caches what goes into each layer's attention (keys
and values of all 70 + C tokens are projected at every chunk), and has no step for the first chunk.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from examples.fastconformer.model import SIZES, Config, build
from examples.quiet import quiet


def toolkit_encoder(c: Config, seed: int = 0) -> Any:
    """NeMo's ConformerEncoder of this geometry, with the weights of ours."""
    from nemo.collections.asr.modules import ConformerEncoder  # type: ignore[import-not-found]

    encoder = ConformerEncoder(
        feat_in=c.mels, n_layers=c.layers, d_model=c.width, n_heads=c.heads, ff_expansion_factor=c.expansion,
        subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=c.channels, causal_downsampling=True,
        att_context_size=list(c.context), att_context_style="chunked_limited", xscaling=c.scaled, use_bias=c.bias,
        conv_kernel_size=c.kernel, conv_norm_type=c.norm, conv_context_size="causal", pos_emb_max_len=c.positions,
    )  # fmt: skip
    encoder.load_state_dict(build(c, seed).state_dict())
    return encoder.eval()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--context", default="70,13", help="tokens seen before and after: 70,13 or 70,0")
    args = parser.parse_args(argv)
    left, right = (int(n) for n in args.context.split(","))
    with quiet():
        encoder = toolkit_encoder(dataclasses.replace(SIZES[args.size], context=(left, right)))
        encoder.export_cache_support = True
        encoder.export(str(args.out), onnx_opset_version=17, check_trace=False)
    print(args.out, encoder.streaming_cfg)


if __name__ == "__main__":
    main()
