// What kernels on the CPU see of the emulated device (device.cpp).
#pragma once
#include <stddef.h>

struct dim3 { unsigned x, y, z; };

struct EmulatedPlace { dim3 thread, block, block_dim, grid_dim; };
extern EmulatedPlace emulated_place;
extern unsigned char* emulated_shared;  // dynamic shared memory of the block

// Where the static memory of a library of kernels lies: all of it is `__shared__`. `checked`: it was
// compiled with checks, and so plainly that a barrier of the source is one place of the code.
struct EmulatedImage { char *begin, *shared, *end; bool checked; };

// Waits until all threads of the block are at the same barrier.
void emulated_block_barrier();
// Waits for the warp; `orders` memory, which a shuffle does not do. The mask must name all lanes.
void emulated_warp_barrier(unsigned mask, bool orders);
// What another lane of the warp gives: every lane gives `value`, and gets that of lane `from`.
void emulated_exchange(unsigned mask, const void* value, size_t size, int from, void* found);
bool emulated_any(unsigned mask, bool predicate);  // of some lane of the warp
int emulated_lane();

// The matrix units of a warp (`sources/matrix_units.cuh`): sums += left · right, where every lane
// holds its part of each; four matrices of 8 x 8, where lane l holds row l % 8 of matrix l / 8.
struct alignas(16) EmulatedRow { unsigned of[4]; };
void emulated_product(float* sums, const unsigned* left, const unsigned* right, bool is_bf16);
void emulated_rows(unsigned* to, EmulatedRow row, bool transposed);
// Asynchronous copies of a thread: nothing arrives before the wait, the place is written all along.
void emulated_copy(void* to, const void* from, size_t size, bool there);
void emulated_commit();
void emulated_wait(int groups);

// Runs every block of a grid, in an order drawn from the seed; the first fault, or null.
const char* emulated_run(const unsigned* grid, const unsigned* block, void (*kernel)(void**),
                         void** arguments, EmulatedImage image);
