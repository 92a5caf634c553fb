#include <crt_externs.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <libproc.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <mach/mach_time.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/event.h>
#include <sys/proc_info.h>
#include <sys/socket.h>
#include <sys/sysctl.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/base/platform.h"

namespace attn {
namespace {

bool close_on_exec(const std::array<int, 2>& ends) {
  return fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ends[1], F_SETFD, FD_CLOEXEC) == 0;
}

/// Returns a number that the system reports under a name; 0 if it does not.
uint64_t number_of_system(const char* name) {
  uint64_t value = 0;
  size_t bytes = sizeof value;  // smaller numbers fill the low bytes
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 ? value : 0;
}

std::string text_of_system(const char* name) {
  size_t bytes = 0;
  if (sysctlbyname(name, nullptr, &bytes, nullptr, 0) != 0 || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (sysctlbyname(name, text.data(), &bytes, nullptr, 0) != 0) return {};
  return text.c_str();  // up to the 0 at the end
}

double seconds_of_ticks(uint64_t ticks) {
  mach_timebase_info_data_t base{};
  mach_timebase_info(&base);
  return 1e-9 * static_cast<double>(ticks) * base.numer / base.denom;
}

double used_by_descendants_s(pid_t process) {
  const int room = proc_listchildpids(process, nullptr, 0);
  if (room <= 0) return 0;
  std::vector<pid_t> children(static_cast<size_t>(room));
  const int found = proc_listchildpids(process, children.data(), static_cast<int>(children.size() * sizeof(pid_t)));
  children.resize(static_cast<size_t>(std::clamp(found, 0, room)));
  double sum = 0;
  for (const pid_t child : children) {
    rusage_info_v2 usage{};
    if (proc_pid_rusage(child, RUSAGE_INFO_V2, reinterpret_cast<rusage_info_t*>(&usage)) == 0) {
      sum += seconds_of_ticks(usage.ri_user_time + usage.ri_system_time + usage.ri_child_user_time +
                              usage.ri_child_system_time);
    }
    sum += used_by_descendants_s(child);
  }
  return sum;
}

}  // namespace

std::string own_program() {
  uint32_t bytes = 0;
  _NSGetExecutablePath(nullptr, &bytes);
  std::string path(bytes, '\0');
  if (_NSGetExecutablePath(path.data(), &bytes) != 0) return {};
  return path.c_str();  // up to the 0 at the end
}

char** own_environment() { return *_NSGetEnviron(); }

bool make_pipe(std::array<int, 2>& ends) { return pipe(ends.data()) == 0 && close_on_exec(ends); }

bool make_sockets(std::array<int, 2>& ends) {
  return socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0 && close_on_exec(ends);
}

int start_program(pid_t& process, const std::string& program, char* const* arguments, char* const* environment,
                  int descriptor, int as) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_CLOEXEC_DEFAULT);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addinherit_np(&actions, stream);
  }
  posix_spawn_file_actions_adddup2(&actions, descriptor, as);
  const int error = posix_spawn(&process, program.c_str(), &actions, &attributes, arguments, environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

// A thread waits for the end of the parent. If the parent has ended already, process 1 is the parent.
void end_with_parent() {
  const pid_t parent = getppid();
  const int queue = kqueue();
  struct kevent end{};
  EV_SET(&end, parent, EVFILT_PROC, EV_ADD, NOTE_EXIT, 0, nullptr);
  if (parent == 1 || queue < 0 || kevent(queue, &end, 1, nullptr, 0, nullptr) != 0) _exit(1);
  std::thread([queue] {
    struct kevent ended{};
    while (kevent(queue, nullptr, 0, &ended, 1, nullptr) < 1) {
    }
    kill(getpid(), SIGKILL);
  }).detach();
}

// A thread other than the first has 512 KiB, unless its maker asks for more.
void on_large_stack(const std::function<void()>& function) {
  constexpr size_t large = size_t{8} << 20;
  if (pthread_get_stacksize_np(pthread_self()) >= large / 2) return function();
  struct Call {
    const std::function<void()>& function;
    std::exception_ptr thrown;
  } call{function, nullptr};
  const auto run = [](void* argument) -> void* {
    auto& own = *static_cast<Call*>(argument);
    try {
      own.function();
    } catch (...) {
      own.thrown = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, large);
  pthread_t thread{};
  const int error = pthread_create(&thread, &attributes, run, &call);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "no thread can be made");
  pthread_join(thread, nullptr);
  if (call.thrown) std::rethrow_exception(call.thrown);
}

double free_memory_bytes(const std::filesystem::path& /*root*/) {
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t words = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &words) !=
      KERN_SUCCESS) {
    return std::numeric_limits<double>::infinity();
  }
  // The free pages count the speculative pages too. Inactive and purgeable pages can be taken away at once.
  const uint64_t available = uint64_t{pages.free_count} + pages.inactive_count + pages.purgeable_count;
  return static_cast<double>(available) * static_cast<double>(vm_kernel_page_size);
}

double resident_bytes() {
  mach_task_basic_info_data_t info{};
  mach_msg_type_number_t words = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &words) != KERN_SUCCESS)
    return 0;
  return static_cast<double>(info.resident_size);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

bool forget_peak() { return false; }

double peak_bytes(const rusage& usage) { return static_cast<double>(usage.ru_maxrss); }

void prefer_huge_pages(void* /*memory*/, size_t /*bytes*/) {}

std::string processor_name() { return text_of_system("machdep.cpu.brand_string"); }

std::string machine_and_boot() {
  return fmt::format("{} {}", processor_name(), text_of_system("kern.bootsessionuuid"));
}

// Takes the caches of the performance cores: the first numbers of cores are theirs.
DataCache data_cache(int level) {
  const uint64_t l1 = number_of_system("hw.perflevel0.l1dcachesize"),
                 l2 = number_of_system("hw.perflevel0.l2cachesize"), l3 = number_of_system("hw.l3cachesize");
  switch (level) {
    case 1:
      return {.bytes = l1};
    case 2: {
      const uint64_t sharing = std::max<uint64_t>(1, number_of_system("hw.perflevel0.cpusperl2"));
      return {.bytes = l2 / sharing};  // a core's part of the cache that several cores share
    }
    default:
      return {.bytes = std::max(l2, l3)};
  }
}

unsigned usable_cores() { return std::max(1u, std::thread::hardware_concurrency()); }

std::vector<ArmFeature> arm_features() {
  std::vector<ArmFeature> features;
  const auto add = [&](const char* name, const char* of_system) {
    features.push_back({name, number_of_system(of_system) != 0});
  };
  add("neon", "hw.optional.AdvSIMD");
  add("aes", "hw.optional.arm.FEAT_AES");
  add("sha2", "hw.optional.arm.FEAT_SHA256");
  add("crc", "hw.optional.armv8_crc32");
  add("lse", "hw.optional.arm.FEAT_LSE");
  add("fullfp16", "hw.optional.arm.FEAT_FP16");
  add("rdm", "hw.optional.arm.FEAT_RDM");
  add("jsconv", "hw.optional.arm.FEAT_JSCVT");
  add("complxnum", "hw.optional.arm.FEAT_FCMA");
  add("rcpc", "hw.optional.arm.FEAT_LRCPC");
  add("sha3", "hw.optional.arm.FEAT_SHA3");
  add("dotprod", "hw.optional.arm.FEAT_DotProd");
  add("fp16fml", "hw.optional.arm.FEAT_FHM");
  add("i8mm", "hw.optional.arm.FEAT_I8MM");
  add("bf16", "hw.optional.arm.FEAT_BF16");
  return features;
}

bool is_emulated() { return number_of_system("sysctl.proc_translated") == 1; }

bool may_use_tiles() { return false; }

BusyCores busy_cores() {
  BusyCores found;
  natural_t cores = 0;
  processor_info_array_t info = nullptr;
  mach_msg_type_number_t words = 0;
  if (host_processor_info(mach_host_self(), PROCESSOR_CPU_LOAD_INFO, &cores, &info, &words) != KERN_SUCCESS) {
    return found;
  }
  const auto* const load = reinterpret_cast<const processor_cpu_load_info*>(info);
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (natural_t core = 0; core < cores; ++core) {
    for (const int state : {CPU_STATE_USER, CPU_STATE_SYSTEM, CPU_STATE_NICE}) {
      found.busy_s += load[core].cpu_ticks[state] / ticks;
    }
    ++found.cores;
  }
  vm_deallocate(mach_task_self(), reinterpret_cast<vm_address_t>(info), words * sizeof *info);
  return found;
}

double descendants_cpu_s() { return used_by_descendants_s(getpid()); }

uintptr_t stack_pointer(const void* context) {
  const auto& state = static_cast<const ucontext_t*>(context)->uc_mcontext->__ss;
#if defined(__aarch64__)
  return static_cast<uintptr_t>(arm_thread_state64_get_sp(state));
#else
  return static_cast<uintptr_t>(state.__rsp);
#endif
}

bool sent_by_process(const siginfo_t& info) { return info.si_code <= 0 || info.si_code >= SI_USER; }

const int mask_for_jump = 1;  // only a jump that restores the mask tells the system that the handlers' stack is free

bool is_main_thread() { return pthread_main_np() != 0; }

// No timer of macOS counts the time of one thread, so another thread looks at this time.
struct ThreadTimer::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool end = false;
  std::atomic<bool> sent = false;
  std::thread watcher;

  void watch(pthread_t thread, int signal) {
    constexpr double period_s = 1;
    const mach_port_t port = pthread_mach_thread_np(thread);
    double next_s = used_s(port) + period_s;
    for (std::unique_lock lock(mutex); !end;) {
      const double left_s = std::max(0.1, next_s - used_s(port));  // the thread needs at least this time
      if (ended.wait_for(lock, std::chrono::duration<double>(left_s), [this] { return end; })) return;
      if (used_s(port) < next_s) continue;
      next_s += period_s;
      sent = true;
      pthread_kill(thread, signal);
    }
  }

  static double used_s(mach_port_t thread) {
    thread_basic_info_data_t info{};
    mach_msg_type_number_t words = THREAD_BASIC_INFO_COUNT;
    if (thread_info(thread, THREAD_BASIC_INFO, reinterpret_cast<thread_info_t>(&info), &words) != KERN_SUCCESS)
      return 0;
    const auto seconds = [](const time_value_t& time) {
      return static_cast<double>(time.seconds) + 1e-6 * static_cast<double>(time.microseconds);
    };
    return seconds(info.user_time) + seconds(info.system_time);
  }
};

ThreadTimer::ThreadTimer(int signal) : state_(std::make_unique<State>()) {
  state_->watcher =
      std::thread([state = state_.get(), thread = pthread_self(), signal] { state->watch(thread, signal); });
}

ThreadTimer::~ThreadTimer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->end = true;
  }
  state_->ended.notify_all();
  state_->watcher.join();
}

bool ThreadTimer::sent(const siginfo_t& /*info*/) { return state_->sent.exchange(false); }

const char* const mathematics_library = nullptr;

}  // namespace attn
