#include "common/backends/metal/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
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

#if defined(__x86_64__)
// Switches to another stack: pushes the callee-saved registers on this stack, and pops these registers from the other
// stack. The portable swapcontext() would make a system call for the signal mask at each switch, and a launch switches
// stacks millions of times.
extern "C" void attn_msl_switch(void** save, void* load);
asm(R"(
.text
.globl attn_msl_switch
.hidden attn_msl_switch
.type attn_msl_switch,@function
attn_msl_switch:
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
.size attn_msl_switch, .-attn_msl_switch
)");
// A new fiber begins here: the function is in %rbx, its argument in %r12.
extern "C" void attn_msl_begin();
asm(R"(
.text
.globl attn_msl_begin
.hidden attn_msl_begin
.type attn_msl_begin,@function
attn_msl_begin:
  movq %r12, %rdi
  callq *%rbx
  ud2
.size attn_msl_begin, .-attn_msl_begin
)");
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
#if defined(__x86_64__)
  void* place = nullptr;  // the stack pointer while the stack does not run
#else
  ucontext_t context = {};
#endif
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

#if defined(__x86_64__)

void Fibers::prepare_stack(Stack& stack) {
  auto** top = reinterpret_cast<void**>(stack.memory + stack_bytes);
  *--top = nullptr;  // keeps the stack aligned to 16 bytes at the call
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&attn_msl_begin);
  *--top = nullptr;                              // rbp
  *--top = reinterpret_cast<void*>(&begin);      // rbx
  *--top = &stack;                               // r12
  for (int i = 0; i < 3; ++i) *--top = nullptr;  // r13, r14, r15
  stack.place = top;
}
void Fibers::switch_stacks(Stack& from, Stack& to) { attn_msl_switch(&from.place, to.place); }

#else

namespace {
// makecontext() passes only arguments of type int, so each pointer comes as two halves.
void begin_at(unsigned function_high, unsigned function_low, unsigned stack_high, unsigned stack_low) {
  const auto whole = [](unsigned high, unsigned low) { return uintptr_t{high} << 32 | low; };
  reinterpret_cast<void (*)(void*)>(whole(function_high, function_low))(
      reinterpret_cast<void*>(whole(stack_high, stack_low)));
}
}  // namespace

void Fibers::prepare_stack(Stack& stack) {
  getcontext(&stack.context);
  stack.context.uc_stack = {.ss_sp = stack.memory, .ss_flags = 0, .ss_size = stack_bytes};
  stack.context.uc_link = &main_->context;
  const uint64_t f = reinterpret_cast<uintptr_t>(&begin), s = reinterpret_cast<uintptr_t>(&stack);
  makecontext(&stack.context, reinterpret_cast<void (*)()>(&begin_at), 4, static_cast<unsigned>(f >> 32),
              static_cast<unsigned>(f), static_cast<unsigned>(s >> 32), static_cast<unsigned>(s));
}
void Fibers::switch_stacks(Stack& from, Stack& to) { swapcontext(&from.context, &to.context); }

#endif

}  // namespace attn::msl
