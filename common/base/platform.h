// What Linux and macOS do in different ways. platform_linux.cpp and platform_macos.cpp define these functions; no other
// file of the host asks for which system it is compiled.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace attn {

// ---- processes

/// A path by which this process's program can be started again.
std::string own_program();
/// The environment of this process: texts NAME=VALUE, and then null.
char** own_environment();
/// Makes a pipe, or a pair of connected sockets for a stream of bytes. A program that this process starts does not get
/// the two descriptors. Returns false, with the reason in errno, if they cannot be made.
bool make_pipe(std::array<int, 2>& ends);
bool make_sockets(std::array<int, 2>& ends);
/// Starts a program. In the new process only the three standard streams and `as`, a copy of `descriptor`, are open.
/// Returns 0, or the number of the error.
int start_program(pid_t& process, const std::string& program, char* const* arguments, char* const* environment,
                  int descriptor, int as);
/// From now on this process is ended when its parent has ended.
void end_with_parent();

/// Calls a function on a stack that is large enough for a compiler: on a new thread, if this thread's stack is smaller
/// than the stacks of the system's compilers. Passes on what the function throws.
void on_large_stack(const std::function<void()>& function);

// ---- memory

/// The bytes of memory that programs can get without swapping; infinity if the system does not say. Limits of this
/// process are not taken into account. `root` is the folder that has the folder proc; macOS does not use it.
double free_memory_bytes(const std::filesystem::path& root);
/// The bytes of memory that this process has now, and the most bytes that it has had since it began or since
/// forget_peak() returned true.
double resident_bytes();
int64_t peak_resident_bytes();
/// Returns false if the system cannot forget the peak.
bool forget_peak();
/// The most bytes of memory that an ended process had.
double peak_bytes(const rusage& usage);
/// Tells the system that huge pages should back this memory.
void prefer_huge_pages(void* memory, size_t bytes);

// ---- processors

/// The name under which the processor is sold; empty if the system does not say.
std::string processor_name();
/// A text that is the same for all processes until the machine starts anew, and differs from other machines' texts.
std::string machine_and_boot();

/// A member is 0 if the system does not report it.
struct DataCache {
  size_t bytes = 0;
  uint32_t ways = 0;
};
/// Returns the data or unified cache of a level, or for level 0 the cache of the highest level.
DataCache data_cache(int level);

/// Returns the number of cores that this process may use: the cores of the affinity mask, but not more than the control
/// group's quota, if there is a quota.
unsigned usable_cores();

struct ArmFeature {
  std::string name;  // LLVM's name: "bf16"
  bool present = false;
};
/// Optional instructions of an AArch64 processor, as the system reports them, where LLVM does not ask the system. Empty
/// on other processors.
std::vector<ArmFeature> arm_features();
/// Whether an emulator of another processor runs this process, such as qemu or Rosetta. Emulators of whole machines are
/// not noticed.
bool is_emulated();
/// Asks for permission to use the tile registers of AMX in all threads of this process. Returns whether the system
/// gives it; false on processors without AMX.
bool may_use_tiles();

/// Busy times since the machine started, summed over the cores that this process may use. `cores` is 0 if the system
/// does not report them.
struct BusyCores {
  int cores = 0;
  double busy_s = 0;  // of all programs, and of other virtual machines of the host
};
BusyCores busy_cores();
/// The CPU time of the living descendants of this process, and of the processes that they have waited for.
double descendants_cpu_s();

// ---- signals

/// The stack pointer at which a signal interrupted the thread, by the third argument of the signal's handler.
uintptr_t stack_pointer(const void* context);
/// Whether a process sent the signal. If not, the thread's own instruction or a timer raised it.
bool sent_by_process(const siginfo_t& info);
/// The second argument of sigsetjmp(), so that a jump out of a handler also leaves the handlers' stack.
extern const int mask_for_jump;
bool is_main_thread();

/// Sends a signal to the thread that made the timer, after each second of this thread's CPU time.
class ThreadTimer {
 public:
  explicit ThreadTimer(int signal);
  ~ThreadTimer();
  ThreadTimer(const ThreadTimer&) = delete;
  ThreadTimer& operator=(const ThreadTimer&) = delete;
  /// For the signal's handler: whether this timer sent the signal.
  bool sent(const siginfo_t& info);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// ---- names in files of code

/// The mathematics library, which kernels call; null if it is a part of the C library.
extern const char* const mathematics_library;
/// For assembly in C++: a symbol's name as C++ sees it, and the directive that keeps the symbol in its library.
#if defined(__APPLE__)
#define ATTN_ASM_SYMBOL(name) "_" #name
#define ATTN_ASM_HIDDEN ".private_extern"
#else
#define ATTN_ASM_SYMBOL(name) #name
#define ATTN_ASM_HIDDEN ".hidden"
#endif

}  // namespace attn
