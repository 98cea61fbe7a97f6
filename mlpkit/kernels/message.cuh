// A flagged message: a value on its way from block to block, with the step that it belongs to, its tag, in 8 bytes that
// are written and read as a whole. The reader looks until the tag is the right one, so nobody waits for a barrier
// between them.

#include "ptx.cuh"

typedef Word64 Message;

__device__ void send(Message* to, float value, Word tag) {
    const Message message = (Message)tag << 32 | __float_as_uint(value);
    st_relaxed_gpu(to, message);
}

__device__ bool is_of(Message message, Word tag) { return (Word)(message >> 32) == tag; }
__device__ bool is_of(ulonglong2 messages, Word tag) { return is_of(messages.x, tag) && is_of(messages.y, tag); }
__device__ Message of_none(Word tag) { return (Message)~tag << 32; }  // which is not of it
__device__ float value_of(Message message) { return __uint_as_float((Word)message); }
