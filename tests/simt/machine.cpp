#include "tests/simt/machine.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
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

enum class State { kReady, kAtBarrier, kAtShuffle, kDone };

struct Fiber {
    Context context;
    void* stack = nullptr;
    State state = State::kReady;
    int epoch = 0;  // barriers passed
    unsigned word = 0;
    int mask = 0;
    unsigned received = 0;
};

// Who last touched a byte of shared memory, and between which barriers.
struct Shadow {
    int writer = -1;
    int write_epoch = -1;
    int reader = -1;  // one of them
    bool several_readers = false;
    int read_epoch = -1;
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
        fibers_.resize(static_cast<std::size_t>(launch_.block));
        for (std::size_t i = 0; i < fibers_.size(); ++i) {
            fibers_[i].stack = stacks.at(i);
            if (fibers_[i].stack == nullptr) return "the machine has no memory for the threads' stacks";
        }
        for (block_ = 0; block_ < launch_.grid; ++block_) {
            run_block();
            if (fault_.empty()) continue;
            for (const Fiber& fiber : fibers_) forget_frames(fiber.stack);
            return fault_;
        }
        return "";
    }

    int thread() const { return current_; }
    int block() const { return block_; }
    int grid() const { return launch_.grid; }

    void barrier() {
        fiber().state = State::kAtBarrier;
        yield();
        ++fiber().epoch;
    }

    unsigned shuffle_xor(unsigned word, int mask) {
        fiber().word = word;
        fiber().mask = mask;
        fiber().state = State::kAtShuffle;
        yield();
        return fiber().received;
    }

    unsigned char* shared(int offset, int bytes, bool write) {
        if (offset < 0 || offset + bytes > launch_.shared_bytes) {
            throw Fault(
                fmt::format("shared memory: bytes {} … {} of {}", offset, offset + bytes - 1, launch_.shared_bytes));
        }
        if (offset % (bytes < 16 ? bytes & -bytes : 16) != 0) {
            throw Fault(fmt::format("shared memory: {} bytes at {} are not aligned", bytes, offset));
        }
        for (int i = offset; i < offset + bytes; ++i) touch(i, write);
        return shared_.data() + offset;
    }

    [[noreturn]] static void fault(const char* what) { throw Fault(what); }

    // The fiber's first and only function.
    void enter() {
        finish_switch(nullptr);
        try {
            body_();
        } catch (const std::exception& error) {
            fault_ = fmt::format("thread {} of block {}: {}", current_, block_, error.what());
        }
        fiber().state = State::kDone;
        start_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
        switch_context(fiber().context, scheduler_);
        __builtin_unreachable();
    }

  private:
    Fiber& fiber() { return fibers_[static_cast<std::size_t>(current_)]; }

    void touch(int byte, bool write) {
        Shadow& shadow = shadow_[static_cast<std::size_t>(byte)];
        const int epoch = fiber().epoch;
        if (shadow.write_epoch == epoch && shadow.writer != current_) {
            throw Fault(fmt::format("race: shared byte {} is {} here and written by thread {}, with no barrier between",
                                    byte, write ? "written" : "read", shadow.writer));
        }
        if (!write && shadow.write_epoch < 0)
            throw Fault(fmt::format("shared byte {} is read before it is written", byte));
        if (write) {
            const bool read_by_other =
                shadow.read_epoch == epoch && (shadow.several_readers || shadow.reader != current_);
            if (read_by_other) {
                throw Fault(
                    fmt::format("race: shared byte {} is written here and read by thread {}, with no barrier between",
                                byte, shadow.reader));
            }
            shadow.writer = current_;
            shadow.write_epoch = epoch;
            return;
        }
        shadow.several_readers = shadow.read_epoch == epoch && (shadow.several_readers || shadow.reader != current_);
        shadow.reader = current_;
        shadow.read_epoch = epoch;
    }

    void run_block();

    // Runs fibers until each waits or is done.
    void run_ready() {
        for (current_ = 0; current_ < launch_.block && fault_.empty(); ++current_) {
            if (fiber().state != State::kReady) continue;
            start_switch(&scheduler_fake_stack_, fiber().stack, kStackBytes);
            switch_context(scheduler_, fiber().context);
            finish_switch(scheduler_fake_stack_);
        }
    }

    // Lets every warp whose lanes have all come to a shuffle go on.
    bool release_shuffles() {
        bool released = false;
        for (int first = 0; first < launch_.block; first += launch_.warp) {
            const int last = std::min(first + launch_.warp, launch_.block);
            int waiting = 0;
            for (int lane = first; lane < last; ++lane) waiting += at(lane).state == State::kAtShuffle ? 1 : 0;
            if (waiting == 0) continue;
            if (waiting != last - first) continue;  // the others may still be on their way, or never come
            for (int lane = first; lane < last; ++lane) {
                if (at(lane).mask != at(first).mask) {
                    fault_ = fmt::format("block {}: lanes {} and {} of a warp shuffle with different masks", block_,
                                         first, lane);
                    return false;
                }
                const int partner = first + ((lane - first) ^ at(lane).mask);
                at(lane).received = partner < last ? at(partner).word : at(lane).word;
                at(lane).state = State::kReady;
            }
            released = true;
        }
        return released;
    }

    bool release_barrier() {
        for (Fiber& fiber : fibers_) {
            if (fiber.state != State::kAtBarrier) return false;
        }
        for (Fiber& fiber : fibers_) fiber.state = State::kReady;
        return true;
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
    Context scheduler_;
    void* scheduler_fake_stack_ = nullptr;
    const void* scheduler_stack_ = nullptr;
    std::size_t scheduler_stack_bytes_ = 0;
    int current_ = 0;
    int block_ = 0;
    std::string fault_;
};

thread_local Machine* machine = nullptr;

void enter_machine() { machine->enter(); }

void Machine::run_block() {
    shared_.assign(static_cast<std::size_t>(launch_.shared_bytes), 0xCD);
    shadow_.assign(shared_.size(), Shadow{});
    for (Fiber& fiber : fibers_) {
        fiber.context = make_context(fiber.stack, kStackBytes, enter_machine);
        fiber.state = State::kReady;
        fiber.epoch = 0;
    }
    while (fault_.empty() && !all_done()) {
        run_ready();
        if (!fault_.empty()) return;
        const bool shuffled = release_shuffles();
        if (shuffled || !fault_.empty() || all_done()) continue;
        if (!release_barrier()) {
            fault_ =
                fmt::format("block {}: some threads wait at a barrier or shuffle that the others never reach", block_);
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
unsigned rj_simt_shuffle_xor(unsigned word, int mask) { return rowjit::simt::machine->shuffle_xor(word, mask); }
unsigned char* rj_simt_shared(int offset, int bytes, bool write) {
    return rowjit::simt::machine->shared(offset, bytes, write);
}
void rj_simt_fault(const char* what) { rowjit::simt::Machine::fault(what); }
}
