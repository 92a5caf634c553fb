#include "common/backends/cpu/guard.h"

#include <fmt/format.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/platform.h"

namespace attn {

namespace {

constexpr std::array faults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
constexpr int tick = SIGURG;  // a signal that has no effect on a process that does not handle it
constexpr size_t handler_stack_bytes = size_t{1} << 16;
constexpr rlim_t most_stack_bytes = rlim_t{1} << 26;  // limit of the main thread's stack, which grows as it is used
constexpr uintptr_t near_bytes = size_t{1} << 16;     // a fault this close to the stack pointer means a full stack

// A thread's call of a kernel: the place to continue after a fault, and the fault that ended the call.
struct Call {
  sigjmp_buf place;
  volatile sig_atomic_t inside = 0, ticks = 0, signal = 0;
  volatile uintptr_t address = 0, stack = 0;  // address of the fault; stack pointer at the fault
  ThreadTimer* timer = nullptr;               // sends the thread's ticks
};
thread_local Call call;

struct sigaction before[NSIG];  // the signals' actions before the guard installed its own

// Does what the signal did before the guard installed its own action.
void pass_on(int number, siginfo_t* info, void* context) {
  struct sigaction& earlier = before[number];
  const bool sent = sent_by_process(*info);
  if (earlier.sa_handler == SIG_DFL || earlier.sa_handler == SIG_IGN) {
    if (number == tick || (sent && earlier.sa_handler == SIG_IGN)) return;
    // The signal ends the process. After the return from the guard's handler a faulty instruction runs again, and
    // raises its signal again. A signal that a process sent does not come again, so this function raises it again.
    sigaction(number, &earlier, nullptr);
    if (sent) raise(number);
    return;
  }
  const struct sigaction action = earlier;
  if (action.sa_flags & static_cast<int>(SA_RESETHAND)) earlier.sa_handler = SIG_DFL;
  sigset_t blocked = action.sa_mask, unblocked;
  if (!(action.sa_flags & SA_NODEFER)) sigaddset(&blocked, number);
  pthread_sigmask(SIG_BLOCK, &blocked, &unblocked);
  if (action.sa_flags & SA_SIGINFO) {
    action.sa_sigaction(number, info, context);
  } else {
    action.sa_handler(number);
  }
  pthread_sigmask(SIG_SETMASK, &unblocked, nullptr);
}

void on_tick(int number, siginfo_t* info, void* context) {
  if (!call.timer || !call.timer->sent(*info)) return pass_on(number, info, context);
  if (!call.inside) return;
  call.ticks = call.ticks + 1;
  if (call.ticks < guarded_seconds) return;
  call.inside = 0;
  call.signal = tick;
  siglongjmp(call.place, 1);
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (!call.inside) return pass_on(number, info, context);
  call.inside = 0;
  call.signal = number;
  call.address = reinterpret_cast<uintptr_t>(info->si_addr);
  call.stack = stack_pointer(context);
  siglongjmp(call.place, 1);
}

bool install() {
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  // SA_NODEFER: the signal is not blocked in the handler, so it is not blocked after the jump out of the handler.
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART);
  action.sa_sigaction = on_fault;
  for (const int number : faults) sigaction(number, &action, &before[number]);
  action.sa_sigaction = on_tick;
  sigaction(tick, &action, &before[tick]);
  return true;
}

// The guard of a thread: a stack for signal handlers, because the thread's own stack may be full, and a timer that
// sends the signal `tick` after each second of the thread's CPU time.
class ThreadGuard {
 public:
  ThreadGuard() {
    stack_t old{};
    if (sigaltstack(nullptr, &old) == 0 && (old.ss_flags & SS_DISABLE) != 0) {
      memory_ = std::make_unique<std::byte[]>(handler_stack_bytes);
      stack_t own{};
      own.ss_sp = memory_.get();
      own.ss_size = handler_stack_bytes;
      sigaltstack(&own, nullptr);
    }
    call.timer = &timer_.emplace(tick);
  }
  ~ThreadGuard() {
    timer_.reset();  // first: the handler must still know a signal that the timer has sent
    call.timer = nullptr;
    if (!memory_) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  ThreadGuard(const ThreadGuard&) = delete;
  ThreadGuard& operator=(const ThreadGuard&) = delete;
  const bool is_main_thread = attn::is_main_thread();

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::optional<ThreadTimer> timer_;
};

// Limits the stack while a kernel runs. Without a limit (after ulimit -s unlimited, or if a library removes the limit)
// an endless recursion would use all memory. The limit holds for the main thread's stack only; the stacks of other
// threads do not grow.
class StackLimit {
 public:
  explicit StackLimit(const ThreadGuard& thread) {
    if (!thread.is_main_thread || getrlimit(RLIMIT_STACK, &before_) != 0 || before_.rlim_cur <= most_stack_bytes) {
      return;
    }
    rlimit limit = before_;
    limit.rlim_cur = most_stack_bytes;
    lowered_ = setrlimit(RLIMIT_STACK, &limit) == 0;
  }
  ~StackLimit() {
    if (lowered_) setrlimit(RLIMIT_STACK, &before_);
  }
  StackLimit(const StackLimit&) = delete;
  StackLimit& operator=(const StackLimit&) = delete;

 private:
  rlimit before_{};
  bool lowered_ = false;
};

KernelFault describe() {
  switch (call.signal) {
    case tick:
      return {fmt::format("did not end a threadgroup within {} s", guarded_seconds), true};
    case SIGFPE:
      return {"divided by zero, or got a quotient that is too large"};
    case SIGILL:
    case SIGTRAP:
      return {"met a trap or an illegal instruction"};
    case SIGABRT:
      return {"called abort()"};
    default:
      break;
  }
  if (call.address - call.stack + near_bytes < 2 * near_bytes)
    return {"filled its stack, as a recursion without end does"};
  return {fmt::format("met an illegal address (0x{:x})", call.address)};
}

}  // namespace

std::optional<KernelFault> run_guarded(void (*kernel)(const void* parameters, const Threadgroup* group),
                                       const void* parameters, const Threadgroup* group) {
  [[maybe_unused]] static const bool installed = install();
  static thread_local const ThreadGuard watched;
  const StackLimit limit(watched);
  call.ticks = 0;
  if (sigsetjmp(call.place, mask_for_jump) == 0) {
    call.inside = 1;
    kernel(parameters, group);
    call.inside = 0;
    return std::nullopt;
  }
  return describe();
}

}  // namespace attn
