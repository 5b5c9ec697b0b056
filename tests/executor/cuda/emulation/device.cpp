// The emulated device: threads of a block are fibers of one thread, blocks run one after the other.
//
// Which thread goes on at a barrier, and which block comes next, is drawn from a seed. Kernels are
// compiled with calls before every access of memory (those of -fsanitize=thread) and where the
// language leaves something undefined (-fsanitize=undefined); this file answers them in the place
// of the sanitizers' own libraries. It knows what orders two accesses on a GPU: barriers of the
// block, __syncwarp within a warp, nothing between blocks. So a fault is reported where a GPU would
// only sometimes give wrong numbers:
//
// - two accesses of one place, one of them a write, that nothing orders;
// - shared memory read before the block has written it;
// - an access outside of the operands of a launch, or that is not aligned to its size;
// - barriers and shuffles that not all threads reach, or reach in different places.
#include "device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

EmulatedPlace emulated_place;
unsigned char* emulated_shared;

namespace {
const int THREADS_MAX = 1024, WARP = 32;
const size_t STACK_BYTES = 128 * 1024;
enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };

jmp_buf resume[THREADS_MAX], scheduler;
ucontext_t start[THREADS_MAX];
char* stacks;
bool begun[THREADS_MAX], failed;  // a fiber that has begun waits for the next block
dim3 places[THREADS_MAX];         // of threads in a block of `placed`
dim3 placed;
State state[THREADS_MAX];
int current, count, ended;
int arrived_block, arrived_warp[WARP];
uint16_t block_round, warp_round[WARP];  // barriers that order memory, so far
void *block_site, *warp_site[WARP];      // where the first to arrive came from
int ready[WARP][WARP], ready_count[WARP];
char exchanged[2][THREADS_MAX][32];
bool turn[THREADS_MAX];  // which half the thread's next exchange goes by
struct Pending { char* to; const char* from; size_t size; bool there; int group; };
std::vector<Pending> pending[THREADS_MAX];  // copies that are under way
int groups[THREADS_MAX];                    // of copies, that a thread has closed
void (*body)(void**);
void** arguments;
EmulatedImage image;
char message[512];
uint64_t random_state = 1;

uint32_t draw(uint32_t below) {  // xorshift64*: Vigna 2016
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)(((random_state * 0x2545F4914F6CDD1Dull) >> 32) * below >> 32);
}

void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  int length = vsnprintf(message, sizeof message, format, values);
  va_end(values);
  const EmulatedPlace& at = emulated_place;
  snprintf(message + length, sizeof message - length, " (block %u %u %u, thread %u %u %u)",
           at.block.x, at.block.y, at.block.z, at.thread.x, at.thread.y, at.thread.z);
  failed = true;
  memset(begun, 0, sizeof begun);  // fibers stay where they are
  _longjmp(scheduler, 1);
}

// ---- threads ----

void make_ready(int thread) {
  state[thread] = READY;
  int warp = thread / WARP;
  ready[warp][ready_count[warp]++] = thread;
}

void wait_as(State as) {
  state[current] = as;
  int here = current;
  if (!_setjmp(resume[here])) _longjmp(scheduler, 1);
}

void trampoline() {
  for (;;) {
    body(arguments);
    ended++;
    wait_as(ENDED);
  }
}

void go_on(int thread) {
  current = thread;
  emulated_place.thread = places[thread];
  if (_setjmp(scheduler)) return;
  if (begun[thread]) _longjmp(resume[thread], 1);
  begun[thread] = true;
  getcontext(&start[thread]);
  start[thread].uc_stack.ss_sp = stacks + thread * STACK_BYTES;
  start[thread].uc_stack.ss_size = STACK_BYTES;
  start[thread].uc_link = nullptr;
  makecontext(&start[thread], trampoline, 0);
  setcontext(&start[thread]);
}

void report_waiting() {
  int at_block = 0, at_warp = 0;
  for (int thread = 0; thread < count; thread++) {
    at_block += state[thread] == AT_BLOCK_BARRIER;
    at_warp += state[thread] == AT_WARP_BARRIER;
  }
  snprintf(message, sizeof message,
           "a barrier that not all threads reach: of %d threads %d wait for the block, %d for "
           "their warp, %d have ended (block %u %u %u)",
           count, at_block, at_warp, ended, emulated_place.block.x, emulated_place.block.y,
           emulated_place.block.z);
  failed = true;
  memset(begun, 0, sizeof begun);
}

// In half of the blocks a warp runs as far as it can before another does.
void run_block() {
  int warps = (count + WARP - 1) / WARP, warp = 0;
  bool ahead = draw(2);
  arrived_block = ended = 0;
  block_round = 0;
  for (int w = 0; w < warps; w++) arrived_warp[w] = warp_round[w] = ready_count[w] = 0;
  for (int thread = 0; thread < count; thread++) {
    turn[thread] = false;
    pending[thread].clear();
    groups[thread] = 0;
    make_ready(thread);
  }
  while (ended < count) {
    if (!ahead || !ready_count[warp]) {
      int first = draw(warps), tried = 0;
      while (tried < warps && !ready_count[(first + tried) % warps]) tried++;
      if (tried == warps) return report_waiting();
      warp = (first + tried) % warps;
    }
    int number = draw(ready_count[warp]), thread = ready[warp][number];
    ready[warp][number] = ready[warp][--ready_count[warp]];
    go_on(thread);
    if (failed) return;
  }
}

// ---- memory ----

// The last accesses of a byte of global memory, or of two neighbouring bytes of shared: by which
// block of all that ever ran, by which of its threads, after how many barriers.
struct Access { uint32_t block; uint16_t thread, round; };
struct Cell { Access write, read; uint16_t write_warp_round, read_warp_round; };
const uint16_t SEVERAL = 0xffff, SEVERAL_BLOCKS = 0xfffe;  // threads that read

struct Range { uintptr_t begin, end; uint64_t moved[2]; };  // bytes read, and written
std::vector<Range> memory;  // of the launch; none: anywhere
size_t last_range, dynamic_bytes;
std::vector<Cell> shared_cells;
const int PAGE_BYTES = 2048, RECENT = 256;
std::unordered_map<uintptr_t, std::vector<Cell>> pages;
struct Recent { uintptr_t page; Cell* cells; } recent[RECENT];
uint32_t block_serial, first_serial;  // of this block, and of the launch's first
bool running;

bool known(uintptr_t at, size_t size) {
  for (size_t tried = 0; tried < memory.size(); tried++) {
    const Range& range = memory[last_range];
    if (at >= range.begin && at + size <= range.end) return true;
    last_range = (last_range + 1) % memory.size();
  }
  return memory.empty();
}

Cell& cell_of(uintptr_t byte) {
  uintptr_t page = byte / PAGE_BYTES;
  Recent& found = recent[page % RECENT];
  if (found.page != page) {
    std::vector<Cell>& cells = pages[page];
    if (cells.empty()) cells.resize(PAGE_BYTES);
    found = {page, cells.data()};
  }
  return found.cells[byte % PAGE_BYTES];
}

// Whether the access came before this thread's next, on any GPU; blocks before `first` did.
bool ordered(const Access& before, uint16_t warp_before, uint32_t first) {
  if (before.block < first) return true;
  if (before.thread == SEVERAL_BLOCKS) return false;
  if (before.block != block_serial) return false;
  if (before.round != block_round) return true;
  if (before.thread == current) return true;
  return before.thread < THREADS_MAX && before.thread / WARP == current / WARP &&
         warp_before != warp_round[current / WARP];
}

const char* whose(const Access& access) {
  bool own = access.block == block_serial && access.thread != SEVERAL_BLOCKS;
  return own ? "the same block" : "another block";
}

inline void touch(Cell& cell, bool writes, bool shared, uintptr_t offset) {
  const char* where = shared ? "shared" : "global";
  uint32_t first = shared ? block_serial : first_serial;
  bool again = cell.read.block == block_serial && cell.read.round == block_round &&
               cell.read.thread == current;
  if (again && !writes) return;  // who wrote meanwhile was reported
  if (!ordered(cell.write, cell.write_warp_round, first)) {
    fail("%s of %s memory at byte %zu, written by a thread of %s with no barrier between",
         writes ? "write" : "read", where, (size_t)offset, whose(cell.write));
  }
  Access mine = {block_serial, (uint16_t)current, block_round};
  uint16_t warp = warp_round[current / WARP];
  if (writes) {
    if (!ordered(cell.read, cell.read_warp_round, first)) {
      fail("write of %s memory at byte %zu, read by a thread of %s with no barrier between", where,
           (size_t)offset, whose(cell.read));
    }
    cell.write = mine;
    cell.write_warp_round = warp;
    return;
  }
  Access& read = cell.read;
  bool of_launch = read.block >= first;
  if (of_launch && (read.block != block_serial || read.thread == SEVERAL_BLOCKS)) {
    read = {block_serial, SEVERAL_BLOCKS, block_round};
    return;
  }
  bool unordered = read.block == block_serial && read.round == block_round &&
                   read.thread != current && cell.read_warp_round == warp;
  bool other = read.block == block_serial && read.round == block_round && read.thread != current &&
               (read.thread >= THREADS_MAX || read.thread / WARP != current / WARP);
  read = mine;
  if (unordered || other) read.thread = SEVERAL;
  cell.read_warp_round = warp;
}

void access(const void* address, size_t size, bool writes, bool aligned) {
  if (!running) return;
  uintptr_t at = (uintptr_t)address;
  if (at - (uintptr_t)stacks < THREADS_MAX * STACK_BYTES) return;
  if (at - (uintptr_t)&emulated_place < sizeof emulated_place) return;
  if (at == (uintptr_t)&emulated_shared) return;
  if (at - (uintptr_t)image.begin < (size_t)(image.shared - image.begin)) return;  // constants
  if (aligned && at % size) fail("access of %zu bytes that is not aligned to them", size);
  // elements have one byte, two, or four and more, of which one cell tells enough
  uintptr_t step = size < 4 ? size : 4, shared = at - (uintptr_t)image.shared;
  size_t fixed_bytes = image.end - image.shared;
  uintptr_t dynamic = at - (uintptr_t)emulated_shared;
  bool is_dynamic = dynamic < dynamic_bytes;
  if (is_dynamic) {
    if (dynamic + size > dynamic_bytes) fail("an access beyond the dynamic shared memory");
    shared = fixed_bytes + dynamic;  // its cells lie behind
  }
  if (is_dynamic || shared < fixed_bytes) {
    for (uintptr_t byte = shared; byte < shared + size; byte += step) {
      Cell& cell = shared_cells[byte / 2];
      if (!writes && cell.write.block != block_serial) {
        fail("read of shared memory that the block has not written");
      }
      touch(cell, writes, true, byte);
    }
    return;
  }
  if (!known(at, size)) {
    fail("%s of %zu bytes outside of the operands", writes ? "write" : "read", size);
  }
  if (!memory.empty()) memory[last_range].moved[writes] += size;
  for (uintptr_t byte = at; byte < at + size; byte += step) {
    touch(cell_of(byte), writes, false, byte - at);
  }
}

// Barriers of the block and of a warp are the same place for all who come to it.
void arrive(void** site, int arrived, void* from) {
  if (arrived == 0) *site = from;
  if (image.checked && *site != from) {
    fail("barriers in two places, or a barrier that not all threads reach");
  }
}
}  // namespace

void emulated_block_barrier() {
  arrive(&block_site, arrived_block, __builtin_return_address(0));
  if (ended) fail("a barrier that some threads of the block have left");
  if (++arrived_block < count) return wait_as(AT_BLOCK_BARRIER);
  arrived_block = 0;
  block_round++;
  for (int thread = 0; thread < count; thread++) {
    if (thread != current) make_ready(thread);
  }
  make_ready(current);
  wait_as(READY);
}

static void warp_barrier(bool orders, void* from) {
  int warp = current / WARP, first = warp * WARP, size = std::min(count - first, WARP);
  arrive(&warp_site[warp], arrived_warp[warp], from);
  if (++arrived_warp[warp] < size) return wait_as(AT_WARP_BARRIER);
  arrived_warp[warp] = 0;
  if (orders) warp_round[warp]++;
  for (int thread = first; thread < first + size; thread++) make_ready(thread);
  wait_as(READY);
}

static void check_mask(unsigned mask) {
  if (mask != ~0u) fail("a mask %x that does not name all lanes is not emulated", mask);
}

void emulated_warp_barrier(unsigned mask, bool orders) {
  check_mask(mask);
  warp_barrier(orders, __builtin_return_address(0));
}

void emulated_exchange(unsigned mask, const void* value, size_t size, int from, void* found) {
  check_mask(mask);
  void* site = __builtin_return_address(0);
  int first = current / WARP * WARP;
  char(*all)[32] = exchanged[turn[current] ^= true];
  memcpy(all[current], value, size);
  warp_barrier(false, site);
  memcpy(found, all[first + from], size);
}

int emulated_lane() { return current % WARP; }

// ---- matrix units ----

// Every lane of the warp gets what every lane gives: lane after lane. Who gives again before others
// have read writes into the other half, and cannot be ahead by more.
static void gather(const void* value, size_t size, void* all, void* site) {
  int first = current / WARP * WARP;
  char(*given)[32] = exchanged[turn[current] ^= true];
  memcpy(given[current], value, size);
  warp_barrier(false, site);
  for (int lane = 0; lane < WARP; lane++) {
    memcpy((char*)all + lane * size, given[first + lane], size);
  }
}

bool emulated_any(unsigned mask, bool predicate) {
  check_mask(mask);
  bool all[WARP];
  gather(&predicate, sizeof predicate, all, __builtin_return_address(0));
  return std::any_of(all, all + WARP, [](bool one) { return one; });
}

// Every number of 16 bits, by its bits: those of float16, then those of bfloat16.
static const std::vector<float>& numbers() {
  static std::vector<float> found;
  if (!found.empty()) return found;
  found.resize(2 << 16);
  for (unsigned bits = 0; bits < 1 << 16; bits++) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(fraction | 1024), exponent - 25);
    found[bits] = bits & 0x8000 ? -size : size;
    unsigned wide = bits << 16;
    memcpy(&found[(1 << 16) + bits], &wide, sizeof wide);
  }
  return found;
}

void emulated_product(float* sums, const unsigned* left, const unsigned* right, bool is_bf16) {
  struct Sides { unsigned left[4], right[2]; } mine, all[WARP];
  memcpy(mine.left, left, sizeof mine.left);
  memcpy(mine.right, right, sizeof mine.right);
  gather(&mine, sizeof mine, all, __builtin_return_address(0));
  const float* number = numbers().data() + (is_bf16 ? 1 << 16 : 0);
  int lane = current % WARP;
  for (int at = 0; at < 4; at++) {
    int row = lane / 4 + at / 2 * 8, column = lane % 4 * 2 + at % 2;
    double sum = sums[at];
    for (int depth = 0; depth < 16; depth++) {
      int pair = depth % 8 / 2, shift = depth % 2 * 16, later = depth / 8;
      unsigned a = all[row % 8 * 4 + pair].left[row / 8 + 2 * later];
      unsigned b = all[column * 4 + pair].right[later];
      sum += (double)number[a >> shift & 0xffffu] * number[b >> shift & 0xffffu];
    }
    sums[at] = (float)sum;
  }
}

void emulated_rows(unsigned* to, EmulatedRow row, bool transposed) {
  EmulatedRow all[WARP];
  gather(&row, sizeof row, all, __builtin_return_address(0));
  int lane = current % WARP, place = lane / 4, pair = lane % 4;
  for (int matrix = 0; matrix < 4; matrix++) {
    const EmulatedRow* rows = all + 8 * matrix;
    if (!transposed) {
      to[matrix] = rows[place].of[pair];
      continue;
    }
    to[matrix] = 0;
    for (int half = 0; half < 2; half++) {
      unsigned found = rows[2 * pair + half].of[place / 2] >> (16 * (place % 2)) & 0xffffu;
      to[matrix] |= found << (16 * half);
    }
  }
}

// ---- asynchronous copies ----

// A device may write the place as soon as the copy begins, and may not have before the wait.
void emulated_copy(void* to, const void* from, size_t size, bool there) {
  if ((uintptr_t)to % size || (there && (uintptr_t)from % size)) {
    fail("a copy of %zu bytes that is not aligned to them", size);
  }
  if (image.checked) {
    if (there) access(from, size, false, true);
    access(to, size, true, true);
  }
  pending[current].push_back({(char*)to, (const char*)from, size, there, groups[current]});
}

void emulated_commit() { groups[current]++; }

void emulated_wait(int left) {
  std::vector<Pending>& mine = pending[current];
  size_t done = 0;
  while (done < mine.size() && mine[done].group < groups[current] - left) {
    const Pending& copy = mine[done++];
    if (image.checked) access(copy.to, copy.size, true, true);
    copy.there ? memcpy(copy.to, copy.from, copy.size) : memset(copy.to, 0, copy.size);
  }
  mine.erase(mine.begin(), mine.begin() + done);
}

const char* emulated_run(const unsigned* grid, const unsigned* block, void (*kernel)(void**),
                         void** given, EmulatedImage of) {
  if (!stacks) stacks = (char*)malloc(THREADS_MAX * STACK_BYTES);
  EmulatedPlace& place = emulated_place;
  place.grid_dim = {grid[0], grid[1], grid[2]};
  place.block_dim = {block[0], block[1], block[2]};
  uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (!threads || threads > THREADS_MAX || !blocks || grid[1] > 65535 || grid[2] > 65535 ||
      grid[0] > 0x7fffffffu || block[2] > 64) {
    return "a grid or a block that no GPU launches";
  }
  if (threads % WARP) return "a block that does not have whole warps";
  count = (int)threads;
  if (memcmp(&placed, &place.block_dim, sizeof placed)) {
    placed = place.block_dim;
    for (unsigned i = 0; i < threads; i++) {
      places[i] = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
    }
  }
  body = kernel;
  arguments = given;
  image = of;
  shared_cells.assign((of.end - of.shared + dynamic_bytes) / 2 + 1, Cell());
  first_serial = block_serial + 1;
  if (pages.size() > 4096) {  // 170 MB of cells
    pages.clear();
    memset(recent, 0, sizeof recent);
  }
  failed = false;
  running = true;
  uint64_t at = draw((uint32_t)std::min<uint64_t>(blocks, 0xffffffffu)), step = 1;
  for (int tries = 0; tries < 8; tries++) {  // any step that shares no factor meets every block
    uint64_t other = 1 + draw((uint32_t)std::min<uint64_t>(blocks, 0xffffffffu));
    if (std::__gcd(other, blocks) == 1) step = other;
  }
  for (uint64_t number = 0; number < blocks && !failed; number++, at = (at + step) % blocks) {
    place.block = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]),
                   (unsigned)(at / grid[0] / grid[1])};
    block_serial++;
    run_block();
  }
  running = false;
  return failed ? message : nullptr;
}

extern "C" {
void emulated_seed(uint64_t seed) { random_state = seed * 2 + 1; }

// Where the operands of the next launches lie: `count` pairs of begin and end.
void emulated_memory(const uintptr_t* ranges, int number) {
  memory.clear();
  last_range = 0;
  for (int i = 0; i < number; i++) memory.push_back({ranges[2 * i], ranges[2 * i + 1], {}});
}

// What threads have read and written of each of them since: pairs of bytes.
void emulated_traffic(uint64_t* moved) {
  for (const Range& range : memory) {
    *moved++ = range.moved[0];
    *moved++ = range.moved[1];
  }
}

// Dynamic shared memory of the blocks of the next launches.
void emulated_shared_bytes(size_t size) {
  free(emulated_shared);
  emulated_shared = (unsigned char*)aligned_alloc(128, (size + 128) / 128 * 128);
  dynamic_bytes = size;
}

// What the compiler calls before every access (GCC's tsan.def).
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* at, size_t size) { access(at, size, false, false); }
void __tsan_write_range(void* at, size_t size) { access(at, size, true, false); }
#define ACCESSES(size)                                                                    \
  void __tsan_read##size(void* at) { access(at, size, false, true); }                     \
  void __tsan_write##size(void* at) { access(at, size, true, true); }                     \
  void __tsan_volatile_read##size(void* at) { access(at, size, false, true); }            \
  void __tsan_volatile_write##size(void* at) { access(at, size, true, true); }            \
  void __tsan_unaligned_read##size(void* at) { access(at, size, false, false); }          \
  void __tsan_unaligned_write##size(void* at) { access(at, size, true, false); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// What it calls where something is undefined (GCC's ubsan.def): all begin with the place.
struct SourceLocation { const char* file; uint32_t line, column; };
static void undefined(const SourceLocation* at, const char* what) {
  if (!running) abort();
  fail("%s in line %u of %s", what, at->line, at->file);
}
#define UNDEFINED(name, what) \
  void __ubsan_handle_##name(const SourceLocation* at) { undefined(at, what); }
UNDEFINED(type_mismatch_v1, "a pointer that is null or not aligned to its type")
UNDEFINED(out_of_bounds, "an index outside of its array")
UNDEFINED(add_overflow, "an overflow of a sum")
UNDEFINED(sub_overflow, "an overflow of a difference")
UNDEFINED(mul_overflow, "an overflow of a product")
UNDEFINED(negate_overflow, "an overflow of a negation")
UNDEFINED(divrem_overflow, "a division by zero or an overflow of it")
UNDEFINED(shift_out_of_bounds, "a shift by too much, or of a negative number")
UNDEFINED(load_invalid_value, "a value that its type does not have")
UNDEFINED(float_cast_overflow, "a number that its integer type does not hold")
UNDEFINED(builtin_unreachable, "a place that is never reached")
UNDEFINED(missing_return, "a function that returns nothing")
UNDEFINED(pointer_overflow, "an overflow of a pointer")
}
