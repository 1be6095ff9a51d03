// Switching between the stacks of simulated threads.
//
// swapcontext asks the kernel for the signal mask at every switch, which was two thirds of the SIMT suite's time. On
// x86-64 the switch is therefore done by hand, saving what the calling convention says a function preserves.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace rowjit::simt {

#ifdef __x86_64__

struct Context {
    void* stack_pointer = nullptr;
};

extern "C" void rj_simt_switch(void** save, void* load);
asm(R"(
    .text
    .globl rj_simt_switch
    .type rj_simt_switch, @function
rj_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size rj_simt_switch, . - rj_simt_switch
)");

inline void switch_context(Context& from, Context& to) { rj_simt_switch(&from.stack_pointer, to.stack_pointer); }

// A context whose first switch calls `entry`, which never returns.
inline Context make_context(void* stack, std::size_t bytes, void (*entry)()) {
    constexpr int kSavedRegisters = 6;
    auto* top = reinterpret_cast<std::uintptr_t*>(static_cast<std::byte*>(stack) + bytes);
    // A function finds its stack eight bytes off a multiple of sixteen: its caller has pushed a return address.
    *--top = 0;
    *--top = reinterpret_cast<std::uintptr_t>(entry);
    for (int i = 0; i < kSavedRegisters; ++i) *--top = 0;
    return {top};
}

#else

struct Context {
    ucontext_t ucontext{};
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.ucontext, &to.ucontext); }

inline Context make_context(void* stack, std::size_t bytes, void (*entry)()) {
    Context context;
    getcontext(&context.ucontext);
    context.ucontext.uc_stack.ss_sp = stack;
    context.ucontext.uc_stack.ss_size = bytes;
    context.ucontext.uc_link = nullptr;
    makecontext(&context.ucontext, entry, 0);
    return context;
}

#endif

}  // namespace rowjit::simt
