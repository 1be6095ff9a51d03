#include "tests/simt/machine.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/simt/context.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace rowjit::simt {
namespace {

// Kernels hold a row's registers in arrays, which the sanitizers' red zones enlarge further.
constexpr std::size_t kStackBytes = std::size_t{512} << 10;
constexpr int kMailboxBytes = 8;
constexpr int kBallot = -1;

enum class State { kReady, kAtBarrier, kAtShuffle, kAtCluster, kAtMailbox, kDone };

// Of each thread of a cluster, how far what it did is known to have happened.
using Clock = std::vector<int>;

void join(Clock* known, const Clock& more) {
    for (std::size_t i = 0; i < known->size(); ++i) (*known)[i] = std::max((*known)[i], more[i]);
}

// Of memory into shared memory, which a thread has issued and not waited for.
struct Copy {
    int offset = 0;
    const void* from = nullptr;
    int bytes = 0;
    int turn = 0;
};

struct Fiber {
    Context context;
    void* stack = nullptr;
    State state = State::kReady;
    int epoch = 0;     // barriers of the block passed
    int meetings = 0;  // of its warp, likewise
    bool all_begun = false;
    Clock clock;       // in a cluster; its own entry is its time
    int mailbox = -1;  // that it waits for, by its place in the cluster's shared memory
    int parity = 0;    // of the turn it waits for
    unsigned word = 0;
    int mask = 0;  // of a shuffle's lanes; 0 where each names the one it asks, as `source`; of a ballot kBallot
    int source = 0;
    std::uint64_t received = 0;
    std::vector<Copy> copies;
    int copy_turns = 0;
};

// Who touched a byte of shared memory, and when. Threads are numbered through the cluster.
struct Touch {
    int thread = -1;
    int epoch = -1;
    int time = 0;  // by the cluster's clocks; of a block alone, meetings of the thread's warp
};
struct Shadow {
    Touch written;
    Touch read;  // by one of them, where several have
    bool several_readers = false;
    bool several_warps = false;  // those are of
    Clock reads;                 // in a cluster: when each thread last read it, since it was written
};

// A transaction barrier: a turn ends when one thread has said how many bytes to expect and they have come.
struct Mailbox {
    int turns = 0;
    int expected = -1;
    int received = 0;
    Clock clock;  // of all who sent to it or said what to expect
};

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Stacks are mapped once and kept: mapping a thousand for every launch costs more than running the kernels.
class Stacks {
  public:
    // The i-th stack; nullptr when there is no memory for it.
    void* at(std::size_t i) {
        while (stacks_.size() <= i) {
            void* stack =
                mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) return nullptr;
            stacks_.push_back(stack);
        }
        return stacks_[i];
    }

  private:
    std::vector<void*> stacks_;
};

thread_local Stacks stacks;

class Machine {
  public:
    Machine(const Launch& launch, const std::function<void()>& body) : launch_(launch), body_(body) {}

    std::string run() {
        fibers_.resize(static_cast<std::size_t>(threads()));
        for (std::size_t i = 0; i < fibers_.size(); ++i) {
            fibers_[i].stack = stacks.at(i);
            if (fibers_[i].stack == nullptr) return "the machine has no memory for the threads' stacks";
        }
        for (first_block_ = 0; first_block_ < launch_.grid; first_block_ += launch_.cluster) {
            run_cluster();
            if (fault_.empty()) continue;
            for (const Fiber& fiber : fibers_) forget_frames(fiber.stack);
            return fault_;
        }
        return "";
    }

    int thread() const { return current_ % launch_.block; }
    int block() const { return first_block_ + rank_of(current_); }
    int grid() const { return launch_.grid; }

    void barrier() {
        fiber().state = State::kAtBarrier;
        yield();
        ++fiber().epoch;
    }

    void cluster_open(int mailboxes, int count) {
        if (thread() != 0) return;
        for (int k = 0; k < count; ++k) mailboxes_[mailbox_at(rank_of(current_), mailboxes + k * kMailboxBytes)] = {};
    }

    // All threads of the cluster have come.
    void cluster_wait() {
        fiber().state = State::kAtCluster;
        yield();
        fiber().all_begun = true;
    }

    void mailbox_expect(int offset, int bytes) {
        Mailbox& mailbox = find_mailbox(rank_of(current_), offset);
        if (mailbox.expected >= 0) throw Fault("a mailbox is told twice in a turn what to expect");
        mailbox.expected = bytes;
        publish(&mailbox);
    }

    void mailbox_wait(int offset, int parity) {
        find_mailbox(rank_of(current_), offset);
        fiber().mailbox = mailbox_at(rank_of(current_), offset);
        fiber().parity = parity;
        fiber().state = State::kAtMailbox;
        yield();
    }

    unsigned char* cluster_send(int rank, int offset, int bytes, int mailbox_offset) {
        if (!fiber().all_begun) throw Fault("a message before all blocks of the cluster are known to have begun");
        if (rank < 0 || rank >= launch_.cluster)
            throw Fault(fmt::format("a message to block {} of a cluster of {}", rank, launch_.cluster));
        const auto first = fibers_.begin() + static_cast<std::ptrdiff_t>(rank) * launch_.block;
        if (std::all_of(first, first + launch_.block, [](const Fiber& f) { return f.state == State::kDone; }))
            throw Fault(fmt::format("a message to block {} of the cluster, which has ended", rank));
        unsigned char* const place = access(rank, offset, bytes, true);
        Mailbox& mailbox = find_mailbox(rank, mailbox_offset);
        mailbox.received += bytes;
        publish(&mailbox);
        return place;
    }

    unsigned shuffle_xor(unsigned word, int mask) {
        fiber().word = word;
        fiber().mask = mask;
        fiber().state = State::kAtShuffle;
        yield();
        return static_cast<unsigned>(fiber().received);
    }

    std::uint64_t ballot(bool condition) {
        shuffle_xor(condition ? 1 : 0, kBallot);
        return fiber().received;
    }

    void meet_warp() {
        shuffle_from(0, 0);
        ++fiber().meetings;
    }

    unsigned shuffle_from(unsigned word, int lane) {
        fiber().source = lane;
        return shuffle_xor(word, 0);
    }

    unsigned char* shared(int offset, int bytes, bool write) { return access(rank_of(current_), offset, bytes, write); }

    // Until the thread waits for it, what a copy brings is not there, and what was there is no more.
    void copy_ahead(int offset, const void* from, int bytes) {
        access(rank_of(current_), offset, bytes, true);
        const int start = rank_of(current_) * launch_.shared_bytes + offset;
        for (int i = start; i < start + bytes; ++i) shadow_[static_cast<std::size_t>(i)].written.thread = -1;
        fiber().copies.push_back({offset, from, bytes, fiber().copy_turns});
    }

    void copies_issued() { ++fiber().copy_turns; }

    void wait_for_copies(int turns) {
        std::vector<Copy> rest;
        for (const Copy& copy : std::exchange(fiber().copies, {})) {
            if (copy.turn >= fiber().copy_turns - turns) {
                rest.push_back(copy);
            } else {
                std::memcpy(access(rank_of(current_), copy.offset, copy.bytes, true), copy.from,
                            static_cast<std::size_t>(copy.bytes));
            }
        }
        fiber().copies = std::move(rest);
    }

    [[noreturn]] static void fault(const char* what) { throw Fault(what); }

    // The fiber's first and only function.
    void enter() {
        finish_switch(nullptr);
        try {
            body_();
        } catch (const std::exception& error) {
            fault_ = fmt::format("thread {} of block {}: {}", thread(), block(), error.what());
        }
        fiber().state = State::kDone;
        start_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
        switch_context(fiber().context, scheduler_);
        __builtin_unreachable();
    }

  private:
    Fiber& fiber() { return fibers_[static_cast<std::size_t>(current_)]; }
    int threads() const { return launch_.block * launch_.cluster; }
    int rank_of(int thread) const { return thread / launch_.block; }

    // Bytes of the shared memory of the cluster's block `rank`.
    unsigned char* access(int rank, int offset, int bytes, bool write) {
        if (offset < 0 || offset + bytes > launch_.shared_bytes) {
            throw Fault(
                fmt::format("shared memory: bytes {} … {} of {}", offset, offset + bytes - 1, launch_.shared_bytes));
        }
        if (offset % std::min(bytes & -bytes, 16) != 0) {
            throw Fault(fmt::format("shared memory: {} bytes at {} are not aligned", bytes, offset));
        }
        const int start = rank * launch_.shared_bytes + offset;
        for (int i = start; i < start + bytes; ++i) touch(i, write);
        return shared_.data() + start;
    }

    // Whether this thread may know that it was done: a barrier, a meeting of its own warp, or messages and turns waited
    // for, lie between.
    bool past(const Touch& touch) {
        if (launch_.cluster > 1) return touch.time <= fiber().clock[static_cast<std::size_t>(touch.thread)];
        const bool have_met = warp_of(touch.thread) == warp_of(current_) && touch.time < fiber().meetings;
        return touch.epoch < fiber().epoch || have_met;
    }

    int warp_of(int thread) const { return thread / launch_.warp; }

    int& time() { return fiber().clock[static_cast<std::size_t>(current_)]; }

    // What was done until now is known to whom `mailbox` wakes.
    void publish(Mailbox* mailbox) {
        mailbox->clock.resize(fibers_.size(), -1);
        join(&mailbox->clock, fiber().clock);
        ++time();
    }

    int mailbox_at(int rank, int offset) const { return rank * launch_.shared_bytes + offset; }

    Mailbox& find_mailbox(int rank, int offset) {
        const auto found = mailboxes_.find(mailbox_at(rank, offset));
        if (found == mailboxes_.end())
            throw Fault(fmt::format("there is no mailbox at byte {} of block {}", offset, rank));
        return found->second;
    }

    std::string where(int byte) const {
        const int rank = byte / launch_.shared_bytes;
        return launch_.cluster == 1 ? fmt::format("shared byte {}", byte)
                                    : fmt::format("shared byte {} of block {}", byte % launch_.shared_bytes, rank);
    }

    void touch(int byte, bool write) {
        Shadow& shadow = shadow_[static_cast<std::size_t>(byte)];
        const bool was_written = shadow.written.thread >= 0;
        if (was_written && shadow.written.thread != current_ && !past(shadow.written)) {
            throw Fault(fmt::format("race: {} is {} here and written by thread {}, with no barrier between",
                                    where(byte), write ? "written" : "read", shadow.written.thread));
        }
        if (!write && !was_written) throw Fault(where(byte) + " is read before it is written");
        const Touch now = {current_, fiber().epoch, launch_.cluster > 1 ? time() : fiber().meetings};
        if (launch_.cluster > 1) return touch_in_cluster(byte, write, now);
        // What its own warp has read before a meeting, others have read too if they have since the barrier.
        const bool by_others = shadow.several_warps && shadow.read.epoch == fiber().epoch;
        const bool read_now = shadow.read.thread >= 0 && (by_others || !past(shadow.read));
        if (write) {
            if (read_now && (shadow.several_readers || shadow.read.thread != current_)) {
                throw Fault(fmt::format("race: {} is written here and read by thread {}, with no barrier between",
                                        where(byte), shadow.read.thread));
            }
            shadow.written = now;
            return;
        }
        shadow.several_readers = read_now && (shadow.several_readers || shadow.read.thread != current_);
        shadow.several_warps = read_now && (by_others || warp_of(shadow.read.thread) != warp_of(current_));
        shadow.read = now;
    }

    void touch_in_cluster(int byte, bool write, const Touch& now) {
        Shadow& shadow = shadow_[static_cast<std::size_t>(byte)];
        if (!write) {
            shadow.reads.resize(fibers_.size(), -1);
            shadow.reads[static_cast<std::size_t>(current_)] = now.time;
            return;
        }
        for (std::size_t reader = 0; reader < shadow.reads.size(); ++reader) {
            if (static_cast<int>(reader) == current_ || shadow.reads[reader] <= fiber().clock[reader]) continue;
            throw Fault(fmt::format("race: {} is written here and read by thread {}, with no barrier between",
                                    where(byte), reader));
        }
        shadow.reads.clear();
        shadow.written = now;
    }

    // Threads that have met know of all that any of them did.
    template <class Fibers>
    void meet(Fibers first, Fibers last) {
        if (launch_.cluster == 1) return;
        Clock all(fibers_.size(), -1);
        for (Fibers fiber = first; fiber != last; ++fiber) join(&all, fiber->clock);
        for (Fibers fiber = first; fiber != last; ++fiber) {
            fiber->clock = all;
            ++fiber->clock[static_cast<std::size_t>(&*fiber - fibers_.data())];
        }
    }

    void run_cluster();

    // Runs fibers until each waits or is done.
    void run_ready() {
        for (current_ = 0; current_ < threads() && fault_.empty(); ++current_) {
            if (fiber().state != State::kReady) continue;
            start_switch(&scheduler_fake_stack_, fiber().stack, kStackBytes);
            switch_context(scheduler_, fiber().context);
            finish_switch(scheduler_fake_stack_);
        }
    }

    // Lets every warp whose lanes have all come to a shuffle go on.
    bool release_shuffles() {
        bool released = false;
        int last = 0;
        for (int first = 0; first < threads(); first = last) {
            last = std::min(first + launch_.warp, (rank_of(first) + 1) * launch_.block);
            int waiting = 0;
            for (int lane = first; lane < last; ++lane) waiting += at(lane).state == State::kAtShuffle ? 1 : 0;
            if (waiting == 0) continue;
            if (waiting != last - first) continue;  // the others may still be on their way, or never come
            std::uint64_t ballot = 0;
            for (int lane = first; lane < last; ++lane) ballot |= std::uint64_t{at(lane).word & 1} << (lane - first);
            for (int lane = first; lane < last; ++lane) {
                if (at(lane).mask != at(first).mask) {
                    fault_ = fmt::format("block {}: lanes {} and {} of a warp shuffle with different masks",
                                         first_block_ + rank_of(first), first, lane);
                    return false;
                }
                const int mask = at(lane).mask;
                const int partner =
                    mask == kBallot ? lane : first + (mask == 0 ? at(lane).source : (lane - first) ^ mask);
                at(lane).received = mask == kBallot ? ballot : partner < last ? at(partner).word : at(lane).word;
                at(lane).state = State::kReady;
            }
            meet(fibers_.begin() + first, fibers_.begin() + last);
            released = true;
        }
        return released;
    }

    // Lets every block go on whose threads have all come to its barrier.
    bool release_barriers() {
        bool released = false;
        for (auto first = fibers_.begin(); first != fibers_.end(); first += launch_.block) {
            const auto waits = [](const Fiber& fiber) { return fiber.state == State::kAtBarrier; };
            if (!std::all_of(first, first + launch_.block, waits)) continue;
            std::for_each(first, first + launch_.block, [](Fiber& fiber) { fiber.state = State::kReady; });
            meet(first, first + launch_.block);
            released = true;
        }
        return released;
    }

    // Lets the cluster go on when all its threads have come.
    bool release_cluster() {
        const auto waits = [](const Fiber& fiber) { return fiber.state == State::kAtCluster; };
        if (!std::all_of(fibers_.begin(), fibers_.end(), waits)) return false;
        for (Fiber& fiber : fibers_) fiber.state = State::kReady;
        meet(fibers_.begin(), fibers_.end());
        return true;
    }

    // Ends the turns of mailboxes that have all they expect, and lets those go on who wait for a turn that has ended.
    bool release_mailboxes() {
        for (auto& [place, mailbox] : mailboxes_) {
            if (mailbox.expected < 0 || mailbox.received < mailbox.expected) continue;
            mailbox.received -= mailbox.expected;
            mailbox.expected = -1;
            ++mailbox.turns;
        }
        bool released = false;
        for (Fiber& fiber : fibers_) {
            if (fiber.state != State::kAtMailbox) continue;
            const Mailbox& mailbox = mailboxes_.at(fiber.mailbox);
            if ((mailbox.turns & 1) == fiber.parity) continue;  // that turn goes on
            join(&fiber.clock, mailbox.clock);
            fiber.state = State::kReady;
            released = true;
        }
        return released;
    }

    bool all_done() const {
        return std::all_of(fibers_.begin(), fibers_.end(),
                           [](const Fiber& fiber) { return fiber.state == State::kDone; });
    }

    Fiber& at(int thread) { return fibers_[static_cast<std::size_t>(thread)]; }

    void yield() {
        void* fake_stack = nullptr;
        start_switch(&fake_stack, scheduler_stack_, scheduler_stack_bytes_);
        switch_context(fiber().context, scheduler_);
        finish_switch(fake_stack);
    }

    // AddressSanitizer must know which stack is in use.
#ifdef __SANITIZE_ADDRESS__
    // Threads that a fault stops in their tracks leave their frames' marks on stacks that are used again.
    static void forget_frames(void* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }
    static void start_switch(void** save, const void* stack, std::size_t bytes) {
        __sanitizer_start_switch_fiber(save, stack, bytes);
    }
    void finish_switch(void* saved) {
        const void* from = nullptr;
        std::size_t bytes = 0;
        __sanitizer_finish_switch_fiber(saved, &from, &bytes);
        if (scheduler_stack_ == nullptr) {  // the first switch comes from the scheduler
            scheduler_stack_ = from;
            scheduler_stack_bytes_ = bytes;
        }
    }
#else
    static void forget_frames(void* /*stack*/) {}
    static void start_switch(void** /*save*/, const void* /*stack*/, std::size_t /*bytes*/) {}
    void finish_switch(void* /*saved*/) {}
#endif

    const Launch launch_;
    const std::function<void()>& body_;
    std::vector<Fiber> fibers_;
    std::vector<unsigned char> shared_;
    std::vector<Shadow> shadow_;
    std::map<int, Mailbox> mailboxes_;  // by their place in the cluster's shared memory
    Context scheduler_;
    void* scheduler_fake_stack_ = nullptr;
    const void* scheduler_stack_ = nullptr;
    std::size_t scheduler_stack_bytes_ = 0;
    int current_ = 0;
    int first_block_ = 0;  // of the cluster that runs
    std::string fault_;
};

thread_local Machine* machine = nullptr;

void enter_machine() { machine->enter(); }

void Machine::run_cluster() {
    shared_.assign(static_cast<std::size_t>(launch_.shared_bytes) * static_cast<std::size_t>(launch_.cluster), 0xCD);
    shadow_.assign(shared_.size(), Shadow{});
    for (Fiber& fiber : fibers_) {
        fiber.context = make_context(fiber.stack, kStackBytes, enter_machine);
        fiber.state = State::kReady;
        fiber.epoch = 0;
        fiber.all_begun = false;
        fiber.copies.clear();
        fiber.copy_turns = 0;
        fiber.clock.assign(launch_.cluster > 1 ? fibers_.size() : 0, -1);
        if (launch_.cluster > 1) fiber.clock[static_cast<std::size_t>(&fiber - fibers_.data())] = 0;
    }
    mailboxes_.clear();
    while (fault_.empty() && !all_done()) {
        run_ready();
        if (!fault_.empty()) return;
        const bool shuffled = release_shuffles();
        if (shuffled || !fault_.empty() || all_done()) continue;
        bool released = release_barriers();
        released = release_cluster() || released;
        released = release_mailboxes() || released;
        if (!released) {
            fault_ = fmt::format("block {}: some threads wait at a barrier or shuffle that the others never reach",
                                 first_block_);
        }
    }
}

}  // namespace

std::string run(const Launch& launch, const std::function<void()>& thread_body) {
    Machine here(launch, thread_body);
    machine = &here;
    std::string fault = here.run();
    machine = nullptr;
    return fault;
}

}  // namespace rowjit::simt

extern "C" {
int rj_simt_thread() { return rowjit::simt::machine->thread(); }
int rj_simt_block() { return rowjit::simt::machine->block(); }
int rj_simt_grid() { return rowjit::simt::machine->grid(); }
void rj_simt_barrier() { rowjit::simt::machine->barrier(); }
unsigned long long rj_simt_ballot(bool condition) { return rowjit::simt::machine->ballot(condition); }
void rj_simt_meet_warp() { rowjit::simt::machine->meet_warp(); }
unsigned rj_simt_shuffle_xor(unsigned word, int mask) { return rowjit::simt::machine->shuffle_xor(word, mask); }
unsigned rj_simt_shuffle_from(unsigned word, int lane) { return rowjit::simt::machine->shuffle_from(word, lane); }
unsigned char* rj_simt_shared(int offset, int bytes, bool write) {
    return rowjit::simt::machine->shared(offset, bytes, write);
}
void rj_simt_cluster_open(int mailboxes, int count) { rowjit::simt::machine->cluster_open(mailboxes, count); }
void rj_simt_cluster_wait() { rowjit::simt::machine->cluster_wait(); }
void rj_simt_mailbox_expect(int mailbox, int bytes) { rowjit::simt::machine->mailbox_expect(mailbox, bytes); }
void rj_simt_mailbox_wait(int mailbox, int parity) { rowjit::simt::machine->mailbox_wait(mailbox, parity); }
unsigned char* rj_simt_cluster_send(int block, int offset, int bytes, int mailbox) {
    return rowjit::simt::machine->cluster_send(block, offset, bytes, mailbox);
}
void rj_simt_copy_ahead(int offset, const void* from, int bytes) {
    rowjit::simt::machine->copy_ahead(offset, from, bytes);
}
void rj_simt_copies_issued() { rowjit::simt::machine->copies_issued(); }
void rj_simt_wait_for_copies(int turns) { rowjit::simt::machine->wait_for_copies(turns); }
void rj_simt_fault(const char* what) { rowjit::simt::Machine::fault(what); }
}
