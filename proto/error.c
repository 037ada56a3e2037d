/* error.c - error messages and the names of enumerations. Thread-safe: no state. */
#include "error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character that begins here (RFC 3629), 0 when none does. Text is terminated. */
static size_t character_bytes(const uint8_t *c)
{
    size_t bytes = c[0] < 0x80                   ? 1
                   : c[0] >= 0xC2 && c[0] < 0xE0 ? 2
                   : (c[0] & 0xF0) == 0xE0       ? 3
                   : c[0] >= 0xF0 && c[0] < 0xF5 ? 4
                                                 : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((c[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90);
    bool surrogate = c[0] == 0xED && c[1] >= 0xA0, beyond = c[0] == 0xF4 && c[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : bytes;
}

int error_set(struct feedd_error *err, int status, const char *format, ...)
{
    if (err == NULL)
        return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(err->message, sizeof(err->message), format, args) < 0)
        err->message[0] = '\0';
    va_end(args);
    /* One line of UTF-8, whatever a file's name holds, and wherever the message was cut. */
    for (uint8_t *c = (uint8_t *)err->message; *c != '\0';) {
        size_t bytes = character_bytes(c);
        if (bytes == 0 || *c < 0x20 || *c == 0x7F)
            *c = '?';
        c += bytes == 0 ? 1 : bytes;
    }
    return status;
}

const char *error_status_name(int status)
{
    switch (status) {
    case FEEDD_OK:
        return "ok";
    case FEEDD_E_ARGUMENT:
        return "bad argument";
    case FEEDD_E_NOT_FOUND:
        return "not found";
    case FEEDD_E_ACCESS:
        return "access denied";
    case FEEDD_E_LIMIT:
        return "over a limit";
    case FEEDD_E_MEMORY:
        return "out of memory";
    case FEEDD_E_IO:
        return "input/output error";
    case FEEDD_E_CORRUPT:
        return "corrupt data";
    case FEEDD_E_UNSUPPORTED:
        return "unsupported";
    case FEEDD_E_VERSION:
        return "version mismatch";
    case FEEDD_E_PROTOCOL:
        return "protocol error";
    case FEEDD_E_CONNECTION:
        return "no connection";
    case FEEDD_E_TIMEOUT:
        return "timeout";
    case FEEDD_E_LEASES:
        return "too many leases";
    case FEEDD_E_TOKEN:
        return "resume token refused";
    case FEEDD_E_STATE:
        return "wrong state";
    case FEEDD_E_FORK:
        return "used after fork";
    case FEEDD_E_SHUTDOWN:
        return "daemon stopping";
    case FEEDD_E_DEVICE:
        return "device error";
    case FEEDD_E_END:
        return "end of stream";
    case FEEDD_E_INTERNAL:
        return "internal error";
    default:
        return "unknown status";
    }
}

static const struct {
    const char *name, *long_name;
    uint32_t bytes;
} dtypes[] = {
    [FEEDD_U8] = {"u8", "uint8", 1},        [FEEDD_I8] = {"i8", "int8", 1},      [FEEDD_F16] = {"f16", "float16", 2},
    [FEEDD_BF16] = {"bf16", "bfloat16", 2}, [FEEDD_F32] = {"f32", "float32", 4}, [FEEDD_I32] = {"i32", "int32", 4},
    [FEEDD_I64] = {"i64", "int64", 8},
};
static const char *const orders[] = {[FEEDD_ORDER_SEQUENTIAL] = "sequential", [FEEDD_ORDER_SHUFFLE] = "shuffle"};
static const char *const tails[] = {
    [FEEDD_TAIL_DROP] = "drop", [FEEDD_TAIL_PAD] = "pad", [FEEDD_TAIL_PARTIAL] = "partial"};

static const char *const shares[] = {[FEEDD_SHARE_PRIVATE] = "private", [FEEDD_SHARE_BROADCAST] = "broadcast"};
static const char *const joins[] = {
    [FEEDD_JOIN_NOW] = "now", [FEEDD_JOIN_GATE] = "gate", [FEEDD_JOIN_NEXT_EPOCH] = "next-epoch"};
static const char *const on_errors[] = {
    [FEEDD_ON_ERROR_SUBSTITUTE] = "substitute", [FEEDD_ON_ERROR_ZERO] = "zero", [FEEDD_ON_ERROR_FAIL] = "fail"};
static const char *const normalize_modes[] = {
    [FEEDD_NORMALIZE_CLIENT] = "client", [FEEDD_NORMALIZE_DAEMON] = "daemon", [FEEDD_NORMALIZE_CPU] = "cpu"};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

const char *dtype_name(int dtype)
{
    return dtype > 0 && dtype < COUNT(dtypes) ? dtypes[dtype].name : NULL;
}

uint32_t dtype_bytes(int dtype)
{
    return dtype > 0 && dtype < COUNT(dtypes) ? dtypes[dtype].bytes : 0;
}

int dtype_parse(const char *name, int *dtype)
{
    for (int i = 1; i < COUNT(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0 || strcmp(dtypes[i].long_name, name) == 0) {
            *dtype = i;
            return 0;
        }
    return FEEDD_E_ARGUMENT;
}

static int parse_name(const char *const *names, int count, const char *name, int *value)
{
    for (int i = 1; i < count; i++)
        if (strcmp(names[i], name) == 0) {
            *value = i;
            return 0;
        }
    return FEEDD_E_ARGUMENT;
}

const char *order_name(int order)
{
    return order > 0 && order < COUNT(orders) ? orders[order] : NULL;
}

int order_parse(const char *name, int *order)
{
    return parse_name(orders, COUNT(orders), name, order);
}

const char *tail_name(int tail)
{
    return tail > 0 && tail < COUNT(tails) ? tails[tail] : NULL;
}

int tail_parse(const char *name, int *tail)
{
    return parse_name(tails, COUNT(tails), name, tail);
}

const char *share_name(int share)
{
    return share > 0 && share < COUNT(shares) ? shares[share] : NULL;
}

int share_parse(const char *name, int *share)
{
    return parse_name(shares, COUNT(shares), name, share);
}

const char *join_name(int join)
{
    return join > 0 && join < COUNT(joins) ? joins[join] : NULL;
}

int join_parse(const char *name, int *join)
{
    return parse_name(joins, COUNT(joins), name, join);
}

const char *on_error_name(int on_error)
{
    return on_error > 0 && on_error < COUNT(on_errors) ? on_errors[on_error] : NULL;
}

int on_error_parse(const char *name, int *on_error)
{
    return parse_name(on_errors, COUNT(on_errors), name, on_error);
}

const char *normalize_mode_name(int mode)
{
    return mode > 0 && mode < COUNT(normalize_modes) ? normalize_modes[mode] : NULL;
}

int normalize_mode_parse(const char *name, int *mode)
{
    return parse_name(normalize_modes, COUNT(normalize_modes), name, mode);
}
