#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "common/base/file.h"
#include "common/base/platform.h"

extern "C" const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));  // the linker defines it

namespace attn {
namespace {

std::string first_line_of(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// Returns the first line of a file that begins with `field`; empty if there is none.
std::string line_with(const std::filesystem::path& path, std::string_view field) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(field)) return line;
  }
  return {};
}

/// Returns the number after a name and white space: "VmRSS:   123 kB".
double number_after(const std::string& line, std::string_view name) {
  return line.empty() ? 0 : static_cast<double>(std::strtoll(line.c_str() + name.size(), nullptr, 10));
}

double used_by_descendants_s(const std::string& process) {
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  double sum = 0;
  std::error_code ignored;
  std::filesystem::directory_iterator thread("/proc/" + process + "/task", ignored);
  for (; thread != std::filesystem::directory_iterator(); thread.increment(ignored)) {  // the process may end meanwhile
    std::ifstream children(thread->path() / "children");
    for (std::string child; children >> child;) {
      std::ifstream file("/proc/" + child + "/stat");
      std::string stat;
      std::getline(file, stat);
      // After the program's name, in parentheses, come the state and ten numbers, then user, system, and both again of
      // the processes that the child has waited for.
      std::istringstream words(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
      std::string skipped;
      for (int i = 0; i < 11; ++i) words >> skipped;
      double time = 0;
      for (int i = 0; i < 4 && words >> time; ++i) sum += time / ticks;
      sum += used_by_descendants_s(child);
    }
  }
  return sum;
}

}  // namespace

// A link: it names the program even if another file has its path by now.
std::string own_program() { return "/proc/self/exe"; }

char** own_environment() { return environ; }

bool make_pipe(std::array<int, 2>& ends) { return pipe2(ends.data(), O_CLOEXEC) == 0; }

bool make_sockets(std::array<int, 2>& ends) {
  return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0;
}

int start_program(pid_t& process, const std::string& program, char* const* arguments, char* const* environment,
                  int descriptor, int as) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, descriptor, as);
  posix_spawn_file_actions_addclosefrom_np(&actions, as + 1);
  const int error = posix_spawn(&process, program.c_str(), &actions, nullptr, arguments, environment);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

void on_large_stack(const std::function<void()>& function) { function(); }  // all threads have `ulimit -s`

double free_memory_bytes(const std::filesystem::path& root) {
  constexpr std::string_view name = "MemAvailable:";
  const std::string line = line_with(root / "proc/meminfo", name);
  return line.empty() ? std::numeric_limits<double>::infinity() : 1024 * number_after(line, name);
}

double resident_bytes() {
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

int64_t peak_resident_bytes() {
  constexpr std::string_view name = "VmHWM:";
  return static_cast<int64_t>(number_after(line_with("/proc/self/status", name), name)) * 1024;  // "123 kB"
}

bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

double peak_bytes(const rusage& usage) { return static_cast<double>(usage.ru_maxrss) * 1024; }

void prefer_huge_pages(void* memory, size_t bytes) { madvise(memory, bytes, MADV_HUGEPAGE); }

std::string processor_name() {
  if (is_emulated()) return {};                                       // the file is about the machine
  const std::string line = line_with("/proc/cpuinfo", "model name");  // "model name\t: VALUE"
  const size_t colon = line.find(':');
  const size_t value = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return value == std::string::npos ? "" : line.substr(value);
}

std::string machine_and_boot() {
  return fmt::format("{} {}", line_with("/proc/cpuinfo", "model name"),
                     read_file("/proc/sys/kernel/random/boot_id").value_or(""));
}

DataCache data_cache(int level) {
  DataCache found;
  int found_level = 0;
  for (int index = 0;; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string level_text = first_line_of(folder + "level");
    if (level_text.empty()) break;
    if (first_line_of(folder + "type") == "Instruction") continue;
    int here = 0;
    std::from_chars(level_text.data(), level_text.data() + level_text.size(), here);
    const auto number_in = [&](const char* file) {
      return std::strtoull(first_line_of(folder + file).c_str(), nullptr, 10);
    };
    if (level == here || (level == 0 && here > found_level)) {
      found.bytes = number_in("size") << 10;  // "512K"
      found.ways = static_cast<uint32_t>(number_in("ways_of_associativity"));
      found_level = here;
    }
  }
  return found;
}

unsigned usable_cores() {
  unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  if (cpu_set_t allowed; sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    cores = static_cast<unsigned>(CPU_COUNT(&allowed));
  }
  std::istringstream quota(first_line_of("/sys/fs/cgroup/cpu.max"));
  double limit = 0, period = 0;
  if (quota >> limit >> period && period > 0)
    cores = std::min(cores, std::max(1u, static_cast<unsigned>(limit / period)));
  return cores;
}

std::vector<ArmFeature> arm_features() {
  std::vector<ArmFeature> features;
#if defined(__aarch64__)
  // The bits of AT_HWCAP and AT_HWCAP2 are part of Linux's interface; older headers lack some of their names.
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const auto add = [&](const char* name, unsigned long word, int bit) {
    features.push_back({name, (word >> bit & 1) != 0});
  };
  add("fp-armv8", first, 0);
  add("neon", first, 1);
  add("aes", first, 3);
  add("sha2", first, 6);
  add("crc", first, 7);
  add("lse", first, 8);
  add("fullfp16", first & first >> 1, 9);  // of scalars (bit 9) and of vectors (bit 10)
  add("rdm", first, 12);
  add("jsconv", first, 13);
  add("complxnum", first, 14);
  add("rcpc", first, 15);
  add("sha3", first, 17);
  add("dotprod", first, 20);
  add("sve", first, 22);
  add("fp16fml", first, 23);
  add("sve2", second, 1);
  add("i8mm", second, 13);
  add("bf16", second, 14);
#endif
  return features;
}

// The kernel runs the emulator, a program for the machine's processor. An emulator passes off its guest's program as
// /proc/self/exe, but not as the program of a thread.
bool is_emulated() {
  ElfW(Half) machine = 0;
  std::ifstream program(fmt::format("/proc/self/task/{}/exe", syscall(SYS_gettid)), std::ios::binary);
  program.seekg(offsetof(ElfW(Ehdr), e_machine));
  program.read(reinterpret_cast<char*>(&machine), sizeof machine);
  return program.good() && machine != __ehdr_start.e_machine;
}

bool may_use_tiles() {
#if defined(__x86_64__)
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

BusyCores busy_cores() {
  BusyCores found;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
  std::ifstream stat("/proc/stat");
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string core;
    words >> core;
    if (!core.starts_with("cpu") || core.size() < 4) continue;
    if (const int number = std::stoi(core.substr(3)); number >= CPU_SETSIZE || !CPU_ISSET(number, &allowed)) continue;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, interrupts = 0, soft_interrupts = 0, stolen = 0;
    words >> user >> nice >> system >> idle >> wait >> interrupts >> soft_interrupts >> stolen;
    found.busy_s += (user + nice + system + interrupts + soft_interrupts + stolen) / ticks;
    ++found.cores;
  }
  return found;
}

double descendants_cpu_s() { return used_by_descendants_s("self"); }

uintptr_t stack_pointer([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.sp;
#else
  return 0;
#endif
}

bool sent_by_process(const siginfo_t& info) { return info.si_code <= 0; }

const int mask_for_jump = 0;  // Linux finds by the stack pointer whether a thread is on the handlers' stack

namespace {
pid_t own_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }
}  // namespace

bool is_main_thread() { return own_thread() == getpid(); }

struct ThreadTimer::State {
  timer_t timer{};
  bool made = false;
};

ThreadTimer::ThreadTimer(int signal) : state_(std::make_unique<State>()) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_value.sival_ptr = this;
  event._sigev_un._tid = own_thread();  // not all versions of glibc have a public name for the member `_tid`
  state_->made = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &state_->timer) == 0;
  itimerspec each_second{};
  each_second.it_interval.tv_sec = each_second.it_value.tv_sec = 1;
  if (state_->made) timer_settime(state_->timer, 0, &each_second, nullptr);
}

ThreadTimer::~ThreadTimer() {
  if (state_->made) timer_delete(state_->timer);
}

bool ThreadTimer::sent(const siginfo_t& info) { return info.si_code == SI_TIMER && info.si_value.sival_ptr == this; }

const char* const mathematics_library = "libm.so.6";

}  // namespace attn
