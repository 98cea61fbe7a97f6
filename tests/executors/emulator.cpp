// The scheduler of the emulated kernels: whose turn it is, who waits, and when what is on its way arrives.

#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <string>

const size_t STACK = 16384, STACK_LEFT = 2048;
const int MOST_QUIET_ROUNDS = 50;  // between two things that others can see, a thread waits only a few times

// At a cluster's barrier a thread arrives, may do something else, and waits. Those that are done are not waited for.
struct Cluster {
    std::vector<Fiber*> arrived;
    unsigned alive;
};

static std::function<void()> kernel;
static std::vector<Fiber> fibers;
static std::vector<State> states;
std::vector<Block> blocks;
static std::vector<Cluster> clusters;
static std::vector<std::function<void()>> pending;  // writes on their way
int block_threads, cluster_blocks;
Fiber* current;
static void* scheduler;
bool changed;
unsigned deliveries;
static std::string failure;

// Save the registers and the stack pointer, and go on where another stack was left.
extern "C" void switch_stacks(void** save, void* to);
asm(R"(
switch_stacks:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi); mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
)");

void leave(State state) {
    if ((char*)__builtin_frame_address(0) < current->stack + STACK_LEFT) failure = "a thread's stack is too small";
    *current->state = state;
    switch_stacks(&current->stack_pointer, scheduler);
}

void fail(const char* why) {
    failure = why;
    leave(DONE);
}

void meet(Meeting& meeting, unsigned all) {
    meeting.here.push_back(current);
    if (meeting.here.size() < all) return leave(MEETING);
    for (Fiber* fiber : meeting.here) *fiber->state = READY;
    meeting.here.clear();
}

static Cluster& my_cluster() { return clusters[current->block / cluster_blocks]; }

static void look_who_arrived(Cluster& cluster) {
    changed = true;
    if (cluster.arrived.size() < cluster.alive) return;
    for (Fiber* fiber : cluster.arrived) {
        fiber->arrival = OVER;
        if (*fiber->state == AT_CLUSTER) *fiber->state = READY;
    }
    cluster.arrived.clear();
}

void arrive_at_cluster() {
    if (current->arrival != NOT_YET) return fail("a thread arrives twice at its cluster's barrier");
    current->arrival = ARRIVED;
    my_cluster().arrived.push_back(current);
    look_who_arrived(my_cluster());
}

void wait_for_cluster() {
    if (current->arrival == NOT_YET) return fail("a thread waits at its cluster's barrier, where it has not arrived");
    if (current->arrival == ARRIVED) leave(AT_CLUSTER);
    current->arrival = NOT_YET, changed = true;
}

// What the compiler's checks call: a GPU reads and writes 16 bytes only at a place that is a multiple of 16, and so on.
extern "C" void __ubsan_handle_type_mismatch_v1(void*, void*) { fail("a misaligned address"); }

static void run_fiber() {
    kernel();
    my_cluster().alive--;
    look_who_arrived(my_cluster());
    leave(DONE);
}

void later(std::function<void()> write) {
    pending.push_back(std::move(write));
    changed = true;
}

void copy_later(void* to, const void* from, size_t bytes) {
    Fiber* mine = current;
    int& in_group = mine->in_group[mine->group % 8];
    mine->copies++, in_group++;
    if (from) later([=, &in_group] { memcpy(to, from, bytes), mine->copies--, in_group--; });
    else later([=, &in_group] { memset(to, 0, bytes), mine->copies--, in_group--; });
}

void wait_for_copies_of_mine() {
    while (current->copies) look_again();
}

static void deliver(std::mt19937& random, size_t n) {
    changed |= n > 0, deliveries += n > 0;
    for (; n > 0; n--) {
        std::swap(pending[random() % pending.size()], pending.back());
        pending.back()();
        pending.pop_back();
    }
}

static std::string stuck() {
    int found[DONE + 1] = {};
    for (State state : states) found[int(state)]++;
    return "stuck: " + std::to_string(found[LOOKING]) + " threads look for what never comes, " +
           std::to_string(found[MEETING] + found[AT_CLUSTER]) + " wait at a barrier, " +
           std::to_string(found[DONE]) + " are done";
}

const char* run(std::function<void()> what, int grid, int cluster, int threads, size_t memory, unsigned seed) {
    if (grid % cluster || threads % 32) return "the grid is not a number of whole clusters and warps";
    const int n = grid * threads, warps = threads / 32;
    char* stacks = (char*)mmap(0, n * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for the stacks";
    madvise(stacks, n * STACK, MADV_NOHUGEPAGE);
    kernel = what, block_threads = threads, cluster_blocks = cluster, failure.clear(), pending.clear(), deliveries = 0;
    fibers.resize(n), states.assign(n, READY), blocks.assign(grid, Block());
    clusters.assign(grid / cluster, Cluster{{}, unsigned(cluster * threads)});
    for (Block& block : blocks) {
        block.memory.assign(memory + 128, 0xff);  // a float that nobody wrote is a NaN
        block.warps.resize(warps);
    }
    for (int i = 0; i < n; i++) {
        void** top = (void**)(stacks + (i + 1) * STACK) - 3;  // aligned as a call leaves it
        *--top = (void*)run_fiber;
        fibers[i] = {top - 6, stacks + i * STACK, &states[i], i % threads, i / threads};  // six registers, all 0
    }
    std::mt19937 random(seed);
    std::vector<int> turns(n / 32), lazy(grid);
    std::vector<unsigned> seen(n / 32);  // of the deliveries, when the warp last looked
    for (int i = 0; i < n / 32; i++) turns[i] = i;
    const int slow = random() % 3 * 30;  // percent of its turns that a slow block, one of four, sleeps through
    for (int& chance : lazy) chance = random() % 4 ? 0 : slow;
    const bool late = random() % 2;  // what is on its way arrives only when nobody can go on
    int alive = n;
    for (int quiet = 0; alive && failure.empty(); quiet = changed ? 0 : quiet + 1) {
        changed = false;
        std::shuffle(turns.begin(), turns.end(), random);
        for (int turn : turns) {
            Fiber* lanes = &fibers[turn * 32];
            State* theirs = &states[turn * 32];
            const bool looks = std::any_of(theirs, theirs + 32, [](State state) { return state == LOOKING; });
            const bool could_see = seen[turn] != deliveries && random() % 2;
            if (quiet == 0 && (int(random() % 100) < lazy[turn / warps] || (looks && !could_see))) continue;
            seen[turn] = deliveries;
            for (int i = 0; i < 32; i++) {
                if (theirs[i] == LOOKING) theirs[i] = READY;
                if (theirs[i] != READY) continue;
                for (int line = 0; line < 4; line++) __builtin_prefetch((char*)lanes[i].stack_pointer + 64 * line);
            }
            const int first = random() % 32;
            for (bool again = true; again;) {
                again = false;
                for (int i = 0; i < 32 && failure.empty(); i++) {
                    const int lane = (first + i) % 32;
                    if (theirs[lane] != READY) continue;
                    current = lanes + lane;
                    switch_stacks(&scheduler, current->stack_pointer);
                    alive -= theirs[lane] == DONE;
                    again = true;
                }
            }
            if (!late && random() % 512 == 0) deliver(random, random() % (pending.size() + 1));
        }
        if (quiet || !late) deliver(random, random() % (pending.size() + 1));
        if (quiet == MOST_QUIET_ROUNDS) failure = stuck();
    }
    munmap(stacks, n * STACK);
    fibers = {}, states = {}, blocks = {}, clusters = {}, pending = {};  // each kernel has its own, of some 40 MB
    return failure.c_str();
}
