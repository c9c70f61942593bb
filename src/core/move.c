/*
 * Moving a strided array into another one of the same shape, in one pass, with a conversion on the
 * way where the types differ. The axes are put into the order of the destination and merged where
 * both sides run on, so that most moves come down to few long rows.
 */
#include "move.h"

#include <errno.h>
#include <string.h>

#include "copy.h"
#include "error.h"
#include "parallel.h"

#define MOVE_THREAD_BYTES (UINT64_C(4) << 20) /* at least so much for each further thread */
#define MOVE_PARTS_PER_THREAD 4
/* Shorter rows begin and end within a line of the cache too often for streaming stores. */
#define MOVE_STREAM_ROW_BYTES 2048
#define MOVE_FETCH_ROW_BYTES 2048 /* longer ones are fetched ahead by the processor */
#define MOVE_ROWS_AHEAD 8

/* ---- plan ---------------------------------------------------------------------------------- */

static int
move_check_side(const sv_strided *side, const char *name, sv_error *err)
{
    uint32_t bytes = svi_type_bytes(side->type);
    if (side->ndim > SV_MAX_NDIM) {
        return svi_fail(err, SV_EINVAL, 0, "move", "%s has %u dimensions, at most %d are possible",
                        name, side->ndim, SV_MAX_NDIM);
    }
    if (side->itemsize == 0 || (side->type != SV_OPAQUE && side->itemsize != bytes)) {
        return svi_fail(err, SV_EINVAL, 0, "move", "%s: type %u with elements of %u bytes", name,
                        side->type, side->itemsize);
    }
    return 0;
}

static int
move_check_shapes(const sv_strided *to, const sv_strided *from, sv_error *err)
{
    if (to->ndim != from->ndim) {
        return svi_fail(err, SV_EINVAL, 0, "move",
                        "the destination has %u dimensions, the source %u", to->ndim, from->ndim);
    }
    for (uint32_t i = 0; i < to->ndim; i++) {
        if (to->shape[i] != from->shape[i]) {
            return svi_fail(err, SV_EINVAL, 0, "move",
                            "axis %u has length %llu in the destination, %llu in the source", i,
                            (unsigned long long)to->shape[i], (unsigned long long)from->shape[i]);
        }
    }
    return 0;
}

/* Are all sums of strides numbers that an address can take? Before anything is multiplied by them. */
static int
move_check_reach(const sv_strided *side, const char *name, sv_error *err)
{
    uint64_t reach = side->itemsize;
    for (uint32_t i = 0; i < side->ndim; i++) {
        uint64_t length = 0;
        uint64_t stride =
            side->strides[i] < 0 ? 0 - (uint64_t)side->strides[i] : (uint64_t)side->strides[i];
        if (side->shape[i] > 1 &&
            (__builtin_mul_overflow(stride, side->shape[i], &length) ||
             __builtin_add_overflow(reach, length, &reach) || reach > INT64_MAX)) {
            return svi_fail(err, SV_EINVAL, 0, "move",
                            "%s lies beyond all memory: axis %u has length %llu and a stride of "
                            "%lld bytes",
                            name, i, (unsigned long long)side->shape[i],
                            (long long)side->strides[i]);
        }
    }
    return 0;
}

static int
move_choose_conversion(const sv_strided *to, const sv_strided *from, const sv_scale *scale,
                       svi_move *out, sv_error *err)
{
    out->converts = to->type != from->type || scale != NULL;
    if (!out->converts && to->itemsize != from->itemsize) {
        return svi_fail(err, SV_ETYPE, 0, "move",
                        "elements of %u bytes cannot be moved to elements of %u bytes",
                        from->itemsize, to->itemsize);
    }
    if (out->converts && !svi_conversion_find(to->type, from->type, scale, &out->conversion)) {
        return svi_fail(err, SV_ETYPE, 0, "move",
                        "there is no conversion from type %u to type %u%s", from->type, to->type,
                        scale != NULL ? " with scale and offset" : "");
    }
    return 0;
}

/* Take the axes that are longer than 1, running forward in the destination, outermost first. */
static void
move_sort_axes(const sv_strided *to, const sv_strided *from, svi_move *out)
{
    for (uint32_t i = 0; i < to->ndim; i++) {
        svi_axis axis = {to->shape[i], to->strides[i], from->strides[i]};
        if (axis.count <= 1) {
            continue;
        }
        if (axis.to < 0) {
            out->to += (int64_t)(axis.count - 1) * axis.to;
            out->from += (int64_t)(axis.count - 1) * axis.from;
            axis.to = -axis.to;
            axis.from = -axis.from;
        }
        uint32_t k = out->axis_count++;
        for (; k > 0 && out->axes[k - 1].to < axis.to; k--) {
            out->axes[k] = out->axes[k - 1];
        }
        out->axes[k] = axis;
    }
}

/* Does no element of the destination share bytes with another? Says no to a few that do not, whose axes
 * are interleaved. */
static bool
move_is_spread(const svi_move *move)
{
    uint64_t span = move->to_bytes;
    for (uint32_t i = move->axis_count; i-- > 0;) {
        uint64_t length = 0;
        if ((uint64_t)move->axes[i].to < span ||
            __builtin_mul_overflow((uint64_t)move->axes[i].to, move->axes[i].count, &length) ||
            length > INT64_MAX) {
            return false;
        }
        span = length;
    }
    return true;
}

static void
move_merge_axes(svi_move *move)
{
    uint32_t kept = 0;
    for (uint32_t i = 1; i < move->axis_count; i++) {
        svi_axis *outer = &move->axes[kept];
        const svi_axis *inner = &move->axes[i];
        int64_t count = (int64_t)inner->count;
        if (outer->to == inner->to * count && outer->from == inner->from * count) {
            *outer = (svi_axis){outer->count * inner->count, inner->to, inner->from};
        } else {
            move->axes[++kept] = *inner;
        }
    }
    move->axis_count = kept + 1;
}

int
svi_move_plan(const sv_strided *to, const sv_strided *from, const sv_scale *scale, svi_move *out,
              sv_error *err)
{
    int status;
    memset(out, 0, sizeof *out);
    if ((status = move_check_side(to, "the destination", err)) != 0 ||
        (status = move_check_side(from, "the source", err)) != 0 ||
        (status = move_check_shapes(to, from, err)) != 0 ||
        (status = move_choose_conversion(to, from, scale, out, err)) != 0) {
        return status;
    }
    out->to = to->data;
    out->from = from->data;
    out->to_bytes = to->itemsize;
    out->from_bytes = from->itemsize;
    bool empty = false;
    for (uint32_t i = 0; i < to->ndim; i++) {
        empty |= to->shape[i] == 0;
    }
    if (!empty) {
        if ((status = move_check_reach(to, "the destination", err)) != 0 ||
            (status = move_check_reach(from, "the source", err)) != 0) {
            return status;
        }
        move_sort_axes(to, from, out);
    }
    if (out->axis_count == 0) {
        out->axes[0] = (svi_axis){empty ? 0 : 1, out->to_bytes, out->from_bytes};
        out->axis_count = 1;
    }
    if (!move_is_spread(out)) {
        return svi_fail(err, SV_EINVAL, 0, "move",
                        "elements of the destination overlap: its strides must keep them apart");
    }
    move_merge_axes(out);
    svi_move_set_stream(out, svi_copy_streams(svi_move_bytes(out), 0));
    return 0;
}

uint64_t
svi_move_bytes(const svi_move *move)
{
    uint64_t bytes = move->to_bytes;
    for (uint32_t i = 0; i < move->axis_count; i++) {
        bytes *= move->axes[i].count;
    }
    return bytes;
}

/* Are the rows short, and do they follow each other without a gap in the destination? Then those of
 * the last two axes are converted as one. */
static bool
move_joins_rows(const svi_move *move)
{
    const svi_axis *row = &move->axes[move->axis_count - 1];
    return move->converts && move->axis_count > 1 && row->count < SVI_CONVERT_BLOCK &&
           row->to == move->to_bytes && row[-1].to == (int64_t)row->count * row->to;
}

void
svi_move_set_stream(svi_move *move, bool stream)
{
    const svi_axis *row = &move->axes[move->axis_count - 1];
    uint64_t count = move_joins_rows(move) ? row->count * row[-1].count : row->count;
    move->stream =
        stream && row->to == move->to_bytes && count >= MOVE_STREAM_ROW_BYTES / move->to_bytes;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Elements may lie anywhere. */
#define MOVE_LOOSE __attribute__((aligned(1), may_alias))
typedef uint8_t move_1 MOVE_LOOSE;
typedef uint16_t move_2 MOVE_LOOSE;
typedef uint32_t move_4 MOVE_LOOSE;
typedef uint64_t move_8 MOVE_LOOSE;

/* The mirrored row has a loop of its own, which compilers can vectorise. */
#define MOVE_SPREAD(size)                                                                          \
    static void move_spread_##size(unsigned char *to, const unsigned char *from, svi_axis axis)    \
    {                                                                                              \
        if (axis.to == (size) && axis.from == -(size)) {                                           \
            for (uint64_t i = 0; i < axis.count; i++) {                                            \
                ((move_##size *)to)[i] = ((const move_##size *)from)[-(int64_t)i];                 \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (uint64_t i = 0; i < axis.count; i++, to += axis.to, from += axis.from) {              \
            *(move_##size *)to = *(const move_##size *)from;                                       \
        }                                                                                          \
    }
MOVE_SPREAD(1)
MOVE_SPREAD(2)
MOVE_SPREAD(4)
MOVE_SPREAD(8)

/* Copy a row whose elements are not neighbours on both sides. */
static void
move_spread(unsigned char *to, const unsigned char *from, svi_axis axis, uint32_t bytes)
{
    switch (bytes) {
    case 1:
        move_spread_1(to, from, axis);
        return;
    case 2:
        move_spread_2(to, from, axis);
        return;
    case 4:
        move_spread_4(to, from, axis);
        return;
    case 8:
        move_spread_8(to, from, axis);
        return;
    default:
        for (uint64_t i = 0; i < axis.count; i++, to += axis.to, from += axis.from) {
            memcpy(to, from, bytes);
        }
    }
}

/* How many numbers to take so that the next ones start on a line of the cache. */
static uint64_t
move_block_length(const svi_move *move, const unsigned char *to)
{
    uint64_t head = (uint64_t)(-(uintptr_t)to & 63) / move->to_bytes;
    return move->stream && head != 0 ? head : SVI_CONVERT_BLOCK;
}

/* Where elements are taken from: one row, or short ones that are joined. */
typedef struct move_source {
    const unsigned char *from; /* of the row */
    svi_axis row;
    int64_t next;   /* bytes from one row to the next */
    uint64_t at;    /* elements of the row that are taken */
    uint32_t bytes; /* one element */
} move_source;

/* Where the next elements of a row lie; *count becomes how many of those wanted it has. */
static const unsigned char *
move_advance(move_source *source, uint64_t *count)
{
    const unsigned char *from = source->from + (int64_t)source->at * source->row.from;
    uint64_t left = source->row.count - source->at;
    *count = left < *count ? left : *count;
    source->at += *count;
    if (source->at == source->row.count) {
        source->at = 0;
        source->from += source->next;
    }
    return from;
}

/* The next `count` elements side by side: where they are, or copied to `near`. */
static const void *
move_take(move_source *source, double *near, uint64_t count)
{
    unsigned char *to = (unsigned char *)near;
    bool dense = source->row.from == source->bytes;
    if (dense && count <= source->row.count - source->at) {
        return move_advance(source, &count);
    }
    while (count > 0) {
        uint64_t taken = count;
        const unsigned char *from = move_advance(source, &taken);
        if (dense) {
            memcpy(to, from, taken * source->bytes);
        } else {
            move_spread(to, from, (svi_axis){taken, source->bytes, source->row.from},
                        source->bytes);
        }
        to += taken * source->bytes;
        count -= taken;
    }
    return near;
}

/* Convert a row, or joined ones, a block at a time, by way of the first-level cache where it cannot
 * go straight. */
static void
move_convert(const svi_move *move, unsigned char *to, const unsigned char *from, bool join)
{
    double near_from[SVI_CONVERT_BLOCK], near_to[SVI_CONVERT_BLOCK];
    const svi_axis *row = &move->axes[move->axis_count - 1];
    move_source source = {from, *row, join ? row[-1].from : 0, 0, move->from_bytes};
    bool scatters = row->to != move->to_bytes;
    bool direct = !scatters && !move->stream;
    for (uint64_t left = join ? row->count * row[-1].count : row->count; left > 0;) {
        uint64_t count = scatters ? SVI_CONVERT_BLOCK : move_block_length(move, to);
        count = count < left ? count : left;
        const void *numbers = move_take(&source, near_from, count);
        svi_conversion_run(&move->conversion, direct ? (void *)to : near_to, numbers, count);
        if (scatters) {
            move_spread(to, (const unsigned char *)near_to,
                        (svi_axis){count, row->to, move->to_bytes}, move->to_bytes);
        } else if (!direct) {
            svi_copy_block(to, near_to, count * move->to_bytes, true);
        }
        left -= count;
        to += (int64_t)count * row->to;
    }
}

static void
move_row(const svi_move *move, unsigned char *to, const unsigned char *from, bool join)
{
    const svi_axis *axis = &move->axes[move->axis_count - 1];
    if (move->converts) {
        move_convert(move, to, from, join);
    } else if (axis->to == move->to_bytes && axis->from == move->to_bytes) {
        svi_copy_block(to, from, axis->count * move->to_bytes, move->stream);
    } else {
        move_spread(to, from, *axis, move->to_bytes);
    }
}

/* ---- all rows ------------------------------------------------------------------------------ */

/* The axis along which short rows follow each other at a distance. Processors fetch ahead within a
 * row only, and each new one would be waited for. */
static const svi_axis *
move_looks_ahead(const svi_move *move, bool join)
{
    const svi_axis *row = &move->axes[move->axis_count - 1];
    bool is_short =
        row->from == move->from_bytes && row->count * move->from_bytes <= MOVE_FETCH_ROW_BYTES;
    return is_short && !join && move->axis_count > 1 ? row - 1 : NULL;
}

static void
move_fetch(const svi_move *move, const unsigned char *row)
{
    uint64_t bytes = move->axes[move->axis_count - 1].count * move->from_bytes;
    for (uint64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(row + at);
    }
}

static void
move_rows(const svi_move *move)
{
    uint64_t index[SV_MAX_NDIM] = {0};
    unsigned char *to = move->to;
    const unsigned char *from = move->from;
    bool join = move_joins_rows(move);
    const svi_axis *over = move_looks_ahead(move, join);
    for (;;) {
        if (over != NULL && index[over - move->axes] + MOVE_ROWS_AHEAD < over->count) {
            move_fetch(move, from + MOVE_ROWS_AHEAD * over->from);
        }
        move_row(move, to, from, join);
        uint32_t k = move->axis_count - (join ? 2 : 1);
        for (; k > 0; k--) {
            const svi_axis *axis = &move->axes[k - 1];
            if (++index[k - 1] < axis->count) {
                to += axis->to;
                from += axis->from;
                break;
            }
            index[k - 1] = 0;
            to -= (int64_t)(axis->count - 1) * axis->to;
            from -= (int64_t)(axis->count - 1) * axis->from;
        }
        if (k == 0) {
            return;
        }
    }
}

/* The outermost axis that has something for every part; else the longest. */
static uint32_t
move_split_axis(const svi_move *move, uint64_t parts)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < move->axis_count; i++) {
        if (move->axes[i].count >= parts) {
            return i;
        }
        longest = move->axes[i].count > move->axes[longest].count ? i : longest;
    }
    return longest;
}

void
svi_move_part(const svi_move *move, uint64_t part, uint64_t parts)
{
    svi_move mine = *move;
    svi_axis *axis = &mine.axes[move_split_axis(move, parts)];
    uint64_t each = axis->count / parts;
    uint64_t more = axis->count % parts; /* so many parts have one more */
    uint64_t begin = each * part + (part < more ? part : more);
    mine.to += (int64_t)begin * axis->to;
    mine.from += (int64_t)begin * axis->from;
    axis->count = each + (part < more ? 1 : 0);
    if (axis->count != 0) {
        move_rows(&mine);
        if (mine.stream) {
            svi_copy_fence();
        }
    }
}

typedef struct move_work {
    const svi_move *move;
    uint64_t parts;
} move_work;

static void
move_run_part(void *context, uint64_t part)
{
    const move_work *work = context;
    svi_move_part(work->move, part, work->parts);
}

int
sv_move(const sv_strided *to, const sv_strided *from, const sv_scale *scale, uint32_t threads,
        sv_error *err)
{
    svi_move move;
    int status = svi_move_plan(to, from, scale, &move, err);
    if (status != 0) {
        return status;
    }
    threads = svi_parallel_threads(threads, svi_move_bytes(&move), MOVE_THREAD_BYTES);
    move_work work = {&move, threads == 1 ? 1 : threads * MOVE_PARTS_PER_THREAD};
    svi_parallel(threads, work.parts, move_run_part, &work);
    return 0;
}
