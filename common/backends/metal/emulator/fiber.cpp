#include "common/backends/metal/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace attn::msl {

#if defined(__x86_64__)
// Switches to another stack: saves on this stack the registers that a called function must preserve, and loads these
// registers from the other stack. The portable swapcontext() would make a system call for the signal mask at each
// switch, and a kernel switches millions of times.
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
}  // namespace

struct Fibers::Stack {
#if defined(__x86_64__)
  void* place = nullptr;
#else
  ucontext_t context = {};
#endif
  char* memory = nullptr;  // the lowest page is a guard page

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

#if defined(__x86_64__)

void Fibers::prepare(size_t number, void (*function)(void*), void* argument) {
  Stack& stack = at(number);
  auto** top = reinterpret_cast<void**>(stack.memory + stack_bytes);
  *--top = nullptr;  // keeps the stack aligned to 16 bytes at the call
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&attn_msl_begin);
  *--top = nullptr;                              // rbp
  *--top = reinterpret_cast<void*>(function);    // rbx
  *--top = argument;                             // r12
  for (int i = 0; i < 3; ++i) *--top = nullptr;  // r13, r14, r15
  stack.place = top;
}
void Fibers::enter(size_t number) {
  running_ = stacks_[number].get();
  attn_msl_switch(&main_->place, running_->place);
}
void Fibers::leave() { attn_msl_switch(&running_->place, main_->place); }

#else

namespace {
// makecontext() passes only arguments of type int, so each pointer comes as two halves.
void begin(unsigned function_high, unsigned function_low, unsigned argument_high, unsigned argument_low) {
  const auto whole = [](unsigned high, unsigned low) { return uintptr_t{high} << 32 | low; };
  reinterpret_cast<void (*)(void*)>(whole(function_high, function_low))(
      reinterpret_cast<void*>(whole(argument_high, argument_low)));
}
}  // namespace

void Fibers::prepare(size_t number, void (*function)(void*), void* argument) {
  Stack& stack = at(number);
  getcontext(&stack.context);
  stack.context.uc_stack = {.ss_sp = stack.memory, .ss_flags = 0, .ss_size = stack_bytes};
  stack.context.uc_link = &main_->context;
  const uint64_t f = reinterpret_cast<uintptr_t>(function), a = reinterpret_cast<uintptr_t>(argument);
  makecontext(&stack.context, reinterpret_cast<void (*)()>(&begin), 4, static_cast<unsigned>(f >> 32),
              static_cast<unsigned>(f), static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
}
void Fibers::enter(size_t number) {
  running_ = stacks_[number].get();
  swapcontext(&main_->context, &running_->context);
}
void Fibers::leave() { swapcontext(&running_->context, &main_->context); }

#endif

}  // namespace attn::msl
