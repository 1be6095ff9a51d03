// A block of GPU threads on the CPU, or a cluster of blocks: a fiber per thread, warps of 32 or 64, barriers and
// shuffles as meeting points, and shadow memory that sees races on shared memory. Emitted kernels run on it unchanged,
// over tests/simt/prelude_simt.h in the place of a vendor's half of the prelude.
//
// What a GPU leaves undefined is a fault here: a barrier or shuffle that some threads never reach, two threads that
// touch a byte of shared memory with no barrier between them when one of them writes, a shared byte read before it was
// written, a message to a block of the cluster that has ended, an access outside the block's shared
// memory, a vector access that is not aligned. Global memory is the process's own, so the sanitizers watch it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rowjit::simt {

struct Launch {
    int grid = 1;
    int block = 1;
    int warp = 32;
    int shared_bytes = 0;
    int cluster = 1;  // blocks that run together; divides the grid
};

// Runs `thread_body` once for every thread of every block, the threads of a block interleaved. Returns "" or the first
// fault: what was done wrong, by which thread of which block.
std::string run(const Launch& launch, const std::function<void()>& thread_body);

}  // namespace rowjit::simt

// What the prelude calls; only inside run(). Kernels are in shared objects of their own, so these are exported.
#pragma GCC visibility push(default)
extern "C" {
int rj_simt_thread();
int rj_simt_block();
int rj_simt_grid();
void rj_simt_barrier();
unsigned long long rj_simt_ballot(bool condition);
void rj_simt_meet_warp();
unsigned rj_simt_shuffle_xor(unsigned word, int mask);
unsigned rj_simt_shuffle_from(unsigned word, int lane);
unsigned char* rj_simt_shared(int offset_bytes, int bytes, bool write);
void rj_simt_cluster_open(int mailboxes, int count);
void rj_simt_cluster_wait();
void rj_simt_mailbox_expect(int mailbox, int bytes);
void rj_simt_mailbox_wait(int mailbox, int parity);
unsigned char* rj_simt_cluster_send(int block, int offset_bytes, int bytes, int mailbox);
void rj_simt_copy_ahead(int offset_bytes, const void* from, int bytes);
void rj_simt_copies_issued();
void rj_simt_wait_for_copies(int turns);
void rj_simt_fault(const char* what);
}
#pragma GCC visibility pop
