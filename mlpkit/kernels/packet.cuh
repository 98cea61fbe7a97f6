// A number on its way from block to block: with the step that it belongs to, its tag, in 8 bytes that are written and
// read as a whole. The reader looks until the tag is the right one, so nobody waits for a barrier between them.

#include "ptx.cuh"

typedef Word64 Packet;

__device__ void send(Packet* to, float value, Word tag) {
    const Packet packet = (Packet)tag << 32 | __float_as_uint(value);
    st_relaxed_gpu(to, packet);
}

__device__ bool is_of(Packet packet, Word tag) { return (Word)(packet >> 32) == tag; }
__device__ bool is_of(ulonglong2 packets, Word tag) { return is_of(packets.x, tag) && is_of(packets.y, tag); }
__device__ float value_of(Packet packet) { return __uint_as_float((Word)packet); }
