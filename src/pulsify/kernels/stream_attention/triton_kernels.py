# mypy: ignore-errors
"""The kernels of `stream_attention`, in Triton's language (arguments are tensors, numbers, tuples of steps).

A column is one frame of the window or one of the new ones, a row is a query. Scores, weights and sums are float32.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32: below it there is only -inf
NUMBERS = ["queries", "width", "new", "offsets", "shift", "share", "split"]  # one kernel for all of them: caches grow
INFINITE = tl.constexpr(float("inf"))
MANY = tl.constexpr(192.0)  # more than a tile has columns; its square is a float16


@triton.jit(do_not_specialize=NUMBERS)
def attend(
    q, keys, values, new_keys, new_values, out, sums, most, total, table, u, v, bias, mask, start, first, last, read,
    write, q_at, keys_at, values_at, new_keys_at, new_values_at, out_at, table_at, u_at, v_at, bias_at, mask_at,
    queries, width, new, offsets, shift, scale, fill, share,
    HEADS: tl.constexpr, DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    HOLLOW: tl.constexpr, HIDDEN: tl.constexpr, ONE_QUERY: tl.constexpr, ONE_TILE: tl.constexpr, FAR: tl.constexpr,
    CARRIED: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One head of one stream: a block of queries over a share of the columns."""
    stream, head = tl.program_id(0) // HEADS, (tl.program_id(0) % HEADS).to(tl.int64)
    query, part = tl.program_id(1) * BLOCK_Q, tl.program_id(2)
    row = (stream if read is None else tl.load(read + stream)).to(tl.int64)
    begin = 0 if start is None else (tl.load(start + stream) % width).to(tl.int32)
    low = 0 if first is None else tl.maximum(tl.load(first + stream), 0).to(tl.int32)
    high = width + new
    high = high if last is None else tl.minimum(tl.load(last + stream), high).to(tl.int32)
    wide = stream.to(tl.int64)

    i, d = query + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    there = (i < queries)[:, None] & (d < DEPTH)[None, :]
    here = q + wide * q_at[0] + head * q_at[1]
    asked = tl.load(here + i[:, None] * q_at[2] + d[None, :] * q_at[3], mask=there, other=0.0)
    content = asked if u is None else _biased(asked, u + head * u_at[0], u_at[1], d, DEPTH)
    position = asked if v is None else _biased(asked, v + head * v_at[0], v_at[1], d, DEPTH)

    kept_keys, kept_values = (
        keys + row * keys_at[0] + head * keys_at[1],
        values + row * values_at[0] + head * values_at[1],
    )
    more_keys = None if new_keys is None else new_keys + wide * new_keys_at[0] + head * new_keys_at[1]
    more_values = None if new_values is None else new_values + wide * new_values_at[0] + head * new_values_at[1]
    offset_rows = None if table is None else table + head * table_at[0]
    added = None if bias is None else bias + wide * bias_at[0] + head * bias_at[1]
    shown = None if mask is None else mask + wide * mask_at[0] + head * mask_at[1]

    top = tl.full([BLOCK_Q], -INFINITE, tl.float32)
    weight = tl.zeros([BLOCK_Q], tl.float32)
    value = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    near = tl.zeros([BLOCK_Q, BLOCK_C], tl.float32)
    if ONE_TILE:
        top, weight, value, near = _block(
            0, query, i, d, content, position, top, weight, value, near, kept_keys, more_keys, kept_values, more_values,
            offset_rows, added, shown, keys_at, new_keys_at, values_at, new_values_at, table_at, bias_at,
            mask_at, queries, width, begin, low, high, offsets, shift, scale, fill,
            DEPTH, VALUE_DEPTH, BLOCK_V, HIDDEN, ONE_QUERY, FAR, False, BLOCK_Q, BLOCK_C,
        )  # fmt: skip
    else:
        from_column = tl.maximum(part * share, low // BLOCK_C * BLOCK_C)
        if CARRIED:
            first_offset = from_column - query - tl.minimum(queries - query, BLOCK_Q) + 1 + shift
            near = _offsets(position, offset_rows, table_at, first_offset + tl.arange(0, BLOCK_C), d, offsets, DEPTH)
        for column in range(from_column, tl.minimum((part + 1) * share, high), BLOCK_C):
            top, weight, value, near = _block(
                column, query, i, d, content, position, top, weight, value, near, kept_keys, more_keys, kept_values,
                more_values, offset_rows, added, shown, keys_at, new_keys_at, values_at, new_values_at,
                table_at, bias_at, mask_at, queries, width, begin, low, high, offsets, shift, scale, fill,
                DEPTH, VALUE_DEPTH, BLOCK_V, HIDDEN, ONE_QUERY, FAR, CARRIED, BLOCK_Q, BLOCK_C,
            )  # fmt: skip

    e = tl.arange(0, BLOCK_V)
    there = (i < queries)[:, None] & (e < VALUE_DEPTH)[None, :]
    if sums is None:
        if new_keys is not None:  # asked for before they are needed: nobody writes new frames
            sink = (stream if write is None else tl.load(write + stream)).to(tl.int64)
            kept_keys, kept_values = (
                keys + sink * keys_at[0] + head * keys_at[1],
                values + sink * values_at[0] + head * values_at[1],
            )
            fresh = _fresh(more_keys, new_keys_at, 0, new, width, d, DEPTH, BLOCK_N)
            fresh_values = _fresh(more_values, new_values_at, 0, new, width, e, VALUE_DEPTH, BLOCK_N)
        made = _finished(top[:, None], weight[:, None], value, HOLLOW)
        here = out + wide * out_at[0] + head * out_at[1]
        tl.store(here + i[:, None] * out_at[2] + e[None, :] * out_at[3], made.to(out.dtype.element_ty), mask=there)
        if new_keys is not None:
            tl.debug_barrier()  # until here somebody may read what is written now
            _keep(fresh, kept_keys, keys_at, 0, new, width, begin, d, DEPTH, BLOCK_N)
            _keep(fresh_values, kept_values, values_at, 0, new, width, begin, e, VALUE_DEPTH, BLOCK_N)
            _append(more_keys, kept_keys, new_keys_at, keys_at, BLOCK_N, new, width, begin, d, DEPTH, BLOCK_N)
            _append(
                more_values, kept_values, new_values_at, values_at, BLOCK_N, new, width, begin, e, VALUE_DEPTH, BLOCK_N
            )
    else:
        cell = (tl.program_id(0).to(tl.int64) * queries + i) * tl.num_programs(2) + part
        tl.store(sums + cell[:, None] * VALUE_DEPTH + e[None, :], value, mask=there)
        tl.store(most + cell, top, mask=i < queries)
        tl.store(total + cell, weight, mask=i < queries)


@triton.jit(do_not_specialize=NUMBERS)
def combine(
    sums, most, total, keys, values, new_keys, new_values, out, start, write, keys_at, values_at, new_keys_at,
    new_values_at, out_at, queries, width, new, split,
    BLOCK_S: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, HOLLOW: tl.constexpr,
):  # fmt: skip
    """One query of one head: the parts of several programs. All have read by now, so the first query's appends."""
    stream, head, i = tl.program_id(0) // HEADS, (tl.program_id(0) % HEADS).to(tl.int64), tl.program_id(1)
    s, e, wide = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_V), stream.to(tl.int64)
    cell = (tl.program_id(0).to(tl.int64) * queries + i) * split + s
    top = tl.load(most + cell, mask=s < split, other=-INFINITE)
    weight = tl.load(total + cell, mask=s < split, other=0.0)
    there = (s < split)[:, None] & (e < VALUE_DEPTH)[None, :]
    value = tl.load(sums + cell[:, None] * VALUE_DEPTH + e[None, :], mask=there, other=0.0)
    highest = tl.max(top, 0)
    share = tl.exp(top - tl.where(highest == -INFINITE, 0.0, highest))
    made = _finished(highest, tl.sum(share * weight, 0), tl.sum(share[:, None] * value, 0), HOLLOW)
    here = out + wide * out_at[0] + head * out_at[1] + i * out_at[2]
    tl.store(here + e * out_at[3], made.to(out.dtype.element_ty), mask=e < VALUE_DEPTH)
    if new_keys is not None:  # noqa: SIM102  (known when compiled, the other when run)
        if i == 0:
            d = tl.arange(0, BLOCK_D)
            begin = 0 if start is None else (tl.load(start + stream) % width).to(tl.int32)
            sink = (stream if write is None else tl.load(write + stream)).to(tl.int64)
            more, kept = (
                new_keys + wide * new_keys_at[0] + head * new_keys_at[1],
                keys + sink * keys_at[0] + head * keys_at[1],
            )
            _append(more, kept, new_keys_at, keys_at, 0, new, width, begin, d, DEPTH, BLOCK_N)
            more, kept = (
                new_values + wide * new_values_at[0] + head * new_values_at[1],
                values + sink * values_at[0] + head * values_at[1],
            )
            _append(more, kept, new_values_at, values_at, 0, new, width, begin, e, VALUE_DEPTH, BLOCK_N)


@triton.jit
def _block(
    column, query, i, d, content, position, top, weight, value, near, keys, new_keys, values, new_values, table, bias,
    mask, keys_at, new_keys_at, values_at, new_values_at, table_at, bias_at, mask_at, queries, width, begin, low, high,
    offsets, shift, scale, fill, DEPTH: tl.constexpr, VALUE_DEPTH: tl.constexpr, BLOCK_V: tl.constexpr,
    HIDDEN: tl.constexpr, ONE_QUERY: tl.constexpr, FAR: tl.constexpr, CARRIED: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A block of columns more: each row's highest score so far, the sums of weights and values relative to it.

    near: products with the block's first offsets, if they are carried from block to block.
    """
    j, e = column + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_V)
    valid = (j >= low) & (j < high)
    k = _tile(keys, new_keys, keys_at, new_keys_at, j, d, width, begin, valid, DEPTH)
    x = _tile(values, new_values, values_at, new_values_at, j, e, width, begin, valid, VALUE_DEPTH)  # on its way now
    score = tl.dot(content, tl.trans(k), input_precision="ieee")
    if table is not None:
        rows = tl.minimum(queries - query, BLOCK_Q)
        nearest = column - query - rows + 1 + shift
        moved, near = _moved(
            position, near, table, table_at, nearest, rows, d, offsets, DEPTH, ONE_QUERY, FAR, CARRIED, BLOCK_Q, BLOCK_C
        )
        score += moved
    there = (i < queries)[:, None] & valid[None, :]
    score = score * scale
    if bias is not None:
        cells = bias + i[:, None].to(tl.int64) * bias_at[2] + j[None, :] * bias_at[3]
        score += tl.load(cells, mask=there, other=0.0).to(tl.float32)
    part = there
    if mask is not None:
        cells = mask + i[:, None].to(tl.int64) * mask_at[2] + j[None, :] * mask_at[3]
        shown = tl.load(cells, mask=there, other=0) != 0
        if HIDDEN:
            part = part & shown
        else:
            score = tl.where(shown, score, fill)
    score = tl.where(part, score, -INFINITE)
    # -inf stands for "nothing takes part": a row of scores that are -inf themselves has the lowest number instead
    highest = tl.maximum(top, tl.max(tl.where(part, tl.maximum(score, LOWEST), -INFINITE), 1))
    level = tl.where(highest == -INFINITE, 0.0, highest)
    weights = tl.exp(score - level[:, None])
    kept = tl.exp(top - level)
    taken = tl.dot(weights.to(x.dtype), x, input_precision="ieee")
    if HIDDEN and mask is not None:  # noqa: SIM102  (known when compiled, the other when run)
        if tl.max((tl.abs(taken) < INFINITE).to(tl.int32) ^ 1) != 0:  # rare: NaN or an infinity among them
            taken = _apart(weights, part, x)
    return highest, weight * kept + tl.sum(weights, 1), value * kept[:, None] + taken, near


@triton.jit
def _moved(
    position, near, table, table_at, nearest, rows, d, offsets, DEPTH: tl.constexpr, ONE_QUERY: tl.constexpr,
    FAR: tl.constexpr, CARRIED: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The scores of relative positions: products with the offsets that a block reads, then its diagonals.

    Row i, column j reads offset j - i, which is j - i + rows - 1 from the nearest that the block needs. Where as many
    offsets lie behind a block as it has columns, they are the first ones of the next: carried on.
    """
    c, far = tl.arange(0, BLOCK_C), near
    if not CARRIED:
        near = _offsets(position, table, table_at, nearest + c, d, offsets, DEPTH)
    made = near
    if not ONE_QUERY:
        at = c[None, :] - tl.arange(0, BLOCK_Q)[:, None] + rows - 1
        made = tl.gather(near, tl.minimum(tl.maximum(at, 0), BLOCK_C - 1), 1)
        if FAR:
            behind = nearest + BLOCK_C + tl.arange(0, BLOCK_Q)
            product = _offsets(position, table, table_at, behind, d, offsets, DEPTH)
            beyond = tl.gather(product, tl.minimum(tl.maximum(at - BLOCK_C, 0), BLOCK_Q - 1), 1)
            made = tl.where(at < BLOCK_C, made, beyond)
            if CARRIED:
                far = product
    return made, far


@triton.jit
def _offsets(position, table, table_at, rows, d, offsets, DEPTH: tl.constexpr):
    wanted = ((rows >= 0) & (rows < offsets))[:, None] & (d < DEPTH)[None, :]
    tile = tl.load(table + rows[:, None].to(tl.int64) * table_at[1] + d[None, :] * table_at[2], mask=wanted, other=0.0)
    return tl.dot(position, tl.trans(tile), input_precision="ieee")


@triton.jit
def _tile(kept, new, kept_at, new_at, j, d, width, begin, valid, DEPTH: tl.constexpr):
    """Columns j, [columns, depth]: of the ring, then of the new frames. What is not valid is not read, and 0."""
    at = begin + j
    at = tl.where(at >= width, at - width, at).to(tl.int64)
    cells = kept + at[:, None] * kept_at[2] + d[None, :] * kept_at[3]
    if new is not None:
        fresh = new + (j - width)[:, None].to(tl.int64) * new_at[2] + d[None, :] * new_at[3]
        cells = tl.where((j < width)[:, None], cells, fresh)
    # nobody reads them again in this step
    return tl.load(cells, mask=valid[:, None] & (d < DEPTH)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _apart(weights, part, x):
    """Weights times values where cells are hidden and values are not finite: 0 times NaN must not reach other rows.

    One exact product counts what each row sees: 1 for inf, MANY for -inf, its square for NaN, or inf times 0.
    """
    y = x.to(tl.float32)
    finite = tl.abs(y) < INFINITE
    kind = tl.where(y != y, MANY * MANY, tl.where(finite, 0.0, tl.where(y > 0, 1.0, MANY)))
    seen = tl.where(part, tl.where(weights == 0, MANY * MANY, 1.0), 0.0)
    count = tl.dot(seen.to(tl.float16), kind.to(tl.float16))
    less = tl.floor(count / MANY)
    taken = tl.dot(weights.to(x.dtype), tl.where(finite, y, 0.0).to(x.dtype), input_precision="ieee")
    taken += tl.where(count - less * MANY > 0, INFINITE, 0.0) + tl.where(less > 0, -INFINITE, 0.0)
    return tl.where(count >= MANY * MANY, float("nan"), taken)


@triton.jit
def _biased(asked, bias, step, d, DEPTH: tl.constexpr):
    added = tl.load(bias + d * step, mask=d < DEPTH, other=0.0)
    return (asked.to(tl.float32) + added.to(tl.float32)[None, :]).to(asked.dtype)


@triton.jit
def _finished(top, weight, value, HOLLOW: tl.constexpr):
    """Sums become the result. A row of -inf alone is NaN, as in ONNX; one in which nothing takes part NaN or zero."""
    made = tl.where(weight == 0, float("nan"), value / tl.where(weight == 0, 1.0, weight))
    if HOLLOW == "zero":
        made = tl.where(top == -INFINITE, 0.0, made)
    if HOLLOW == "quiet":  # no weights, or NaN among them
        made = tl.where(weight > 0, made, 0.0)
    return made


@triton.jit
def _append(
    new, kept, new_at, kept_at, frame, count, width, begin, d, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """New frame i becomes column begin + i of the ring, the last ones if there are more than it has."""
    for at in range(frame, count, BLOCK_N):
        x = _fresh(new, new_at, at, count, width, d, DEPTH, BLOCK_N)
        _keep(x, kept, kept_at, at, count, width, begin, d, DEPTH, BLOCK_N)


@triton.jit
def _fresh(new, new_at, frame, count, width, d, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr):
    i = frame + tl.arange(0, BLOCK_N)
    wanted = ((i < count) & (i >= count - width))[:, None] & (d < DEPTH)[None, :]
    return tl.load(new + i[:, None].to(tl.int64) * new_at[2] + d[None, :] * new_at[3], mask=wanted)


@triton.jit
def _keep(x, kept, kept_at, frame, count, width, begin, d, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr):
    i = frame + tl.arange(0, BLOCK_N)
    wanted = ((i < count) & (i >= count - width))[:, None] & (d < DEPTH)[None, :]
    at = (begin + i) % tl.maximum(width, 1)
    tl.store(kept + at[:, None].to(tl.int64) * kept_at[2] + d[None, :] * kept_at[3], x, mask=wanted)
