/* fuzz_unpack.c - bodies of packets: every message type, unpacked into the bounded arena.
 *
 * Input: a byte that picks the message type (7 bits), then the body; with the 8th bit, as often as a packet holds it.
 * What has to hold: a message lies in the used part of the arena, all of it, with its strings terminated; packed and
 * unpacked again it is the same message. The unused part of the arena is poisoned while the message is looked at. */
#include <sanitizer/asan_interface.h>

#include "fuzz.h"
#include "wire.h"

static const ProtobufCMessageDescriptor *const types[] = {
    &feedd__hello__descriptor,  &feedd__welcome__descriptor, &feedd__open__descriptor,    &feedd__stream__descriptor,
    &feedd__attach__descriptor, &feedd__ready__descriptor,   &feedd__release__descriptor, &feedd__end__descriptor,
    &feedd__close__descriptor,  &feedd__status__descriptor,  &feedd__report__descriptor,  &feedd__error__descriptor,
    &feedd__field__descriptor,  &feedd__members__descriptor, &feedd__verify__descriptor,  &feedd__progress__descriptor,
    &feedd__cancel__descriptor,
};
#define TYPE_COUNT (sizeof(types) / sizeof(types[0]))

static struct wire_arena arena;
static int has_field_0; /* libprotobuf-c takes an unknown field 0 when its tag has two bytes, and not when it has one */
static uint8_t repeated[WIRE_MAX_PACKET - WIRE_HEADER_BYTES];
static uint8_t first[WIRE_ARENA_BYTES], second[WIRE_ARENA_BYTES]; /* packets: no message is longer than its arena */

static void check_inside(const void *memory, size_t bytes)
{
    const uint8_t *begin = memory;
    FUZZ_CHECK(begin >= arena.bytes && begin <= arena.bytes + arena.used);
    FUZZ_CHECK(bytes <= (size_t)(arena.bytes + arena.used - begin));
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_UINT32:
        return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_UINT64:
        return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_DOUBLE:
        return sizeof(double);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        FUZZ_CHECK(!"a type that feedd.proto didn't have");
        return 0;
    }
}

static void check_message(const ProtobufCMessage *message);

static void check_pointer(ProtobufCType type, const void *pointer)
{
    if (type == PROTOBUF_C_TYPE_MESSAGE) {
        check_message(pointer);
    } else {
        check_inside(pointer, 1);
        check_inside(pointer, strnlen(pointer, (size_t)(arena.bytes + arena.used - (const uint8_t *)pointer)) + 1);
    }
}

static void check_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const uint8_t *member = (const uint8_t *)message + field->offset;
    int points = field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
    size_t bytes = value_bytes(field->type), count;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        memcpy(&count, (const uint8_t *)message + field->quantifier_offset, sizeof(count));
        memcpy(&member, (const void *)member, sizeof(void *));
        if (count == 0)
            return;
        FUZZ_CHECK(count <= sizeof(arena.bytes) / bytes);
        check_inside(member, count * bytes);
    } else {
        count = 1;
    }
    for (size_t i = 0; points && i < count; i++) {
        const void *pointer;
        memcpy(&pointer, member + i * bytes, sizeof(pointer));
        FUZZ_CHECK(pointer != NULL || field->label == PROTOBUF_C_LABEL_OPTIONAL);
        if (pointer != NULL)
            check_pointer(field->type, pointer);
    }
}

static void check_message(const ProtobufCMessage *message)
{
    check_inside(message, sizeof(*message));
    check_inside(message, message->descriptor->sizeof_message);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        check_field(message, &message->descriptor->fields[i]);
    for (unsigned i = 0; i < message->n_unknown_fields; i++) {
        check_inside(message->unknown_fields[i].data, message->unknown_fields[i].len);
        has_field_0 |= message->unknown_fields[i].tag == 0;
    }
}

static const ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *body, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(arena.bytes, sizeof(arena.bytes));
    const ProtobufCMessage *message =
        wire_unpack(&arena, type, &(struct wire_packet){.body = body, .body_bytes = bytes});
    FUZZ_CHECK(arena.used <= sizeof(arena.bytes));
    ASAN_POISON_MEMORY_REGION(arena.bytes + arena.used, sizeof(arena.bytes) - arena.used);
    if (message != NULL) {
        FUZZ_CHECK(message->descriptor == type);
        check_message(message);
    }
    return message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (arena.allocator.alloc == NULL)
        wire_arena_init(&arena);
    uint16_t number = (data[0] & 127) % TYPE_COUNT;
    const uint8_t *body = data + 1;
    size_t body_bytes = size - 1;
    if (data[0] & 128 && body_bytes > 0) { /* messages one behind the other are one message */
        size_t times = sizeof(repeated) / body_bytes;
        for (size_t i = 0; i < times; i++)
            memcpy(repeated + i * body_bytes, body, body_bytes);
        body = repeated;
        body_bytes *= times;
    }
    has_field_0 = 0;
    const ProtobufCMessage *message = unpack(types[number], body, body_bytes);
    if (message == NULL || has_field_0)
        return 0;
    size_t bytes = wire_pack(first, sizeof(first), (enum wire_type)(number + 1), message);
    FUZZ_CHECK(bytes >= WIRE_HEADER_BYTES);
    message = unpack(types[number], first + WIRE_HEADER_BYTES, bytes - WIRE_HEADER_BYTES);
    FUZZ_CHECK(message != NULL);
    FUZZ_CHECK(wire_pack(second, sizeof(second), (enum wire_type)(number + 1), message) == bytes);
    FUZZ_CHECK(memcmp(first, second, bytes) == 0);
    return 0;
}
