#include "common/backends/metal/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "common/base/platform.h"
#if !defined(__SANITIZE_ADDRESS__) && defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace attn::msl {

// Switches to another stack: pushes the callee-saved registers on this stack, and pops these registers from the other
// stack. The portable swapcontext() would make a system call for the signal mask at each switch, and a launch switches
// stacks millions of times.
extern "C" __attribute__((visibility("hidden"))) void attn_msl_switch(void** save, void* load);
// A new fiber begins here: the function and its argument are in two of the registers that attn_msl_switch() pops.
extern "C" __attribute__((visibility("hidden"))) void attn_msl_begin();
#define ATTN_ASM_BEGIN(name)                                  \
  ".text\n.globl " ATTN_ASM_SYMBOL(name) "\n" ATTN_ASM_HIDDEN \
                                         " " ATTN_ASM_SYMBOL(name) "\n.p2align 4\n" ATTN_ASM_SYMBOL(name) ":\n"
#if defined(__x86_64__)
asm(ATTN_ASM_BEGIN(attn_msl_switch) R"(
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
)" ATTN_ASM_BEGIN(attn_msl_begin) R"(
  movq %r12, %rdi
  callq *%rbx
  ud2
)");
#elif defined(__aarch64__)
asm(ATTN_ASM_BEGIN(attn_msl_switch) R"(
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)" ATTN_ASM_BEGIN(attn_msl_begin) R"(
  mov x0, x20
  blr x19
  brk #1
)");
#else
#error "the emulated Metal device switches stacks on x86-64 and AArch64 only"
#endif

namespace {

constexpr size_t stack_bytes = size_t{256} << 10;

// AddressSanitizer has to know which stack is in use. The code on the old stack calls start() before a switch, and the
// code on the new stack calls finish() after the switch. `fake` keeps the sanitizer's data about the old stack.
#ifdef __SANITIZE_ADDRESS__
void start(void** fake, const void* bottom, size_t bytes) { __sanitizer_start_switch_fiber(fake, bottom, bytes); }
void finish(void* fake, const void** bottom, size_t* bytes) { __sanitizer_finish_switch_fiber(fake, bottom, bytes); }
/// Forgets the frames of a fiber that ended in the middle of a function.
void forget_frames(void* memory) { __asan_unpoison_memory_region(memory, stack_bytes); }
#else
void start(void**, const void*, size_t) {}
void finish(void*, const void**, size_t*) {}
void forget_frames(void*) {}
#endif

}  // namespace

struct Fibers::Stack {
  void* place = nullptr;   // the stack pointer while the stack does not run
  char* memory = nullptr;  // the lowest page is a guard page
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  void* fake = nullptr;  // AddressSanitizer's data about this stack
  // Address and size of the main stack, which only AddressSanitizer reports.
  const void* bottom = nullptr;
  size_t bytes = 0;

  ~Stack() {
    if (memory) munmap(memory, stack_bytes);
  }
};

Fibers::Fibers() : main_(std::make_unique<Stack>()) {}
Fibers::~Fibers() = default;

Fibers::Stack& Fibers::at(size_t number) {
  while (stacks_.size() <= number) {
    auto stack = std::make_unique<Stack>();
    void* const memory =
        mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack->memory = static_cast<char*>(memory);
    mprotect(memory, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
    stacks_.push_back(std::move(stack));
  }
  return *stacks_[number];
}

void Fibers::begin(void* stack) {
  auto* const own = static_cast<Stack*>(stack);
  finish(nullptr, &own->bottom, &own->bytes);
  own->function(own->argument);
}

void Fibers::prepare(size_t number, void (*function)(void*), void* argument) {
  Stack& stack = at(number);
  stack.function = function;
  stack.argument = argument;
  stack.fake = nullptr;
  forget_frames(stack.memory);
  prepare_stack(stack);
}

void Fibers::enter(size_t number) {
  running_ = stacks_[number].get();
  start(&main_->fake, running_->memory, stack_bytes);
  switch_stacks(*main_, *running_);
  finish(main_->fake, nullptr, nullptr);
}

void Fibers::leave(bool for_good) {
  Stack& own = *running_;
  start(for_good ? nullptr : &own.fake, own.bottom, own.bytes);
  switch_stacks(own, *main_);
  finish(own.fake, &own.bottom, &own.bytes);
}

// Puts on the stack what attn_msl_switch() pops.
void Fibers::prepare_stack(Stack& stack) {
  auto** top = reinterpret_cast<void**>(stack.memory + stack_bytes);
#if defined(__x86_64__)
  *--top = nullptr;  // keeps the stack aligned to 16 bytes at the call
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&attn_msl_begin);
  *--top = nullptr;                              // rbp
  *--top = reinterpret_cast<void*>(&begin);      // rbx
  *--top = &stack;                               // r12
  for (int i = 0; i < 3; ++i) *--top = nullptr;  // r13, r14, r15
#elif defined(__aarch64__)
  for (int i = 0; i < 20; ++i) *--top = nullptr;
  top[0] = reinterpret_cast<void*>(&begin);            // x19
  top[1] = &stack;                                     // x20
  top[11] = reinterpret_cast<void*>(&attn_msl_begin);  // x30, to which attn_msl_switch() returns
#endif
  stack.place = top;
}
void Fibers::switch_stacks(Stack& from, Stack& to) { attn_msl_switch(&from.place, to.place); }

}  // namespace attn::msl
