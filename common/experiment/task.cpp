#include "common/experiment/task.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/platform.h"
#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"
#include "common/experiment/ceilings.h"

namespace attn {
namespace {

// The descriptor of a worker's socket, and the name of its activity in the folder TMPDIR.
constexpr int worker_socket = 3;
constexpr const char* activity_file = "/activity";

/// After SIGINT or SIGTERM, a worker may run for at most this many seconds. Then it is ended.
constexpr double ending_s = 1;

// A message is its length, as a uint64_t, and CBOR: CBOR keeps names of files that are no UTF-8; JSON would not.
std::string packed(const Json& message) {
  std::string text(sizeof(uint64_t), '\0');
  Json::to_cbor(message, text);
  const uint64_t bytes = text.size() - sizeof(uint64_t);
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text;
}

/// Takes the first message off a text; nothing if the text has no whole message.
std::optional<Json> unpacked(std::string& text) {
  uint64_t bytes = 0;
  if (text.size() < sizeof bytes) return {};
  std::memcpy(&bytes, text.data(), sizeof bytes);
  if (text.size() - sizeof bytes < bytes) return {};
  Json message = Json::from_cbor(text.substr(sizeof bytes, bytes));
  text.erase(0, sizeof bytes + bytes);
  return message;
}

/// Appends what a pipe has. Returns false at the end of the pipe.
bool read_more(int descriptor, std::string& text) {
  std::array<char, 1 << 16> part{};
  const ssize_t got = read(descriptor, part.data(), part.size());
  if (got > 0) text.append(part.data(), static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

/// A process of this program with the option --task.
class Process {
 public:
  Process(std::vector<std::string> arguments, double most_silent_s) : most_silent_s_(most_silent_s) {
    arguments.emplace_back("--task");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    // All temporary files of the worker and of its compilers lie in a folder, which this process removes.
    std::string folder = "TMPDIR=" + folder_.path().string();
    std::vector<char*> environment = {folder.data()};
    for (char** variable = own_environment(); *variable; ++variable) {
      if (!std::string_view(*variable).starts_with("TMPDIR=")) environment.push_back(*variable);
    }
    environment.push_back(nullptr);
    std::array<int, 2> ends{};
    if (!make_sockets(ends)) {
      throw std::runtime_error(fmt::format("no socket: {}", strerror(errno)));
    }
    socket_ = ends[0];
    fcntl(socket_, F_SETFL, O_NONBLOCK);
    std::signal(SIGCHLD, SIG_DFL);  // a parent may have set SIGCHLD to be ignored; then nobody could wait for a worker
    std::fflush(nullptr);
    const int error = start_program(process_, own_program(), argv.data(), environment.data(), ends[1], worker_socket);
    close(ends[1]);
    if (error == 0) return;
    close(socket_);
    throw std::runtime_error(fmt::format("no process can be started: {}", strerror(error)));
  }
  ~Process() {
    shutdown(socket_, SHUT_WR);  // the worker then exits
    constexpr double leaving_s = 10;
    const Stopwatch stopwatch;
    while (process_ > 0 && waitpid(process_, nullptr, WNOHANG) == 0) {
      if (busy_ || interrupted() || stopwatch.seconds() > leaving_s) kill(process_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    close(socket_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  WorkerEnd run(const Json& task, const std::function<void(const Json&)>& take) {
    busy_ = true;
    activity_.at(-1);
    std::string out = packed(task);
    WorkerEnd end{.done = false, .at = -1, .status = {}, .reason = {}};
    std::optional<Stopwatch> since_signal;
    while (exchange(out)) {
      while (const std::optional<Json> message = unpacked(in_)) {
        if (message->contains("done")) {
          busy_ = false;
          return {};
        }
        if (message->contains("lost")) {
          end.status = message->at("lost");
          end.reason = message->at("reason");
        } else {
          take(*message);
        }
      }
      if (interrupted() && !since_signal) {
        since_signal.emplace();
        kill(process_, SIGTERM);
      }
      if (since_signal ? since_signal->seconds() > ending_s : is_silent()) kill(process_, SIGKILL);
    }
    int status = 0;
    waitpid(std::exchange(process_, 0), &status, 0);
    end.at = activity_.at();
    if (end.status.empty()) {
      end.status = "failed";
      end.reason = "the process of the run " + how_ended(status);
    }
    return end;
  }

 private:
  /// Writes what the worker takes of `out`, and reads what it has answered. Returns false once the worker has ended.
  bool exchange(std::string& out) {
    constexpr double most_wait_s = 0.25;
    pollfd socket = {.fd = socket_, .events = static_cast<short>(POLLIN | (out.empty() ? 0 : POLLOUT)), .revents = 0};
    poll(&socket, 1, static_cast<int>(1e3 * std::min(most_wait_s, most_silent_s_ / 4)));
    if ((socket.revents & POLLOUT) != 0) {
      const ssize_t written = send(socket_, out.data(), out.size(), MSG_NOSIGNAL);
      if (written > 0) out.erase(0, static_cast<size_t>(written));
    }
    return (socket.revents & (POLLIN | POLLHUP | POLLERR)) == 0 || read_more(socket_, in_);
  }

  /// Whether the worker makes no progress for too long. The time between two calls counts as at most 2 s, because this
  /// process may have been stopped in between, or may have waited for a reader of its output.
  bool is_silent() {
    const double passed_s = std::min(since_call_.lap(), 2.0);
    const int64_t progresses = activity_.progresses();
    silent_s_ = std::exchange(last_progress_, progresses) == progresses ? silent_s_ + passed_s : 0;
    return silent_s_ > most_silent_s_;
  }

  std::string how_ended(int status) const {
    if (silent_s_ > most_silent_s_) return fmt::format("made no progress for {:.3g} s, and was ended", most_silent_s_);
    if (!WIFSIGNALED(status)) return fmt::format("ended with status {}", WEXITSTATUS(status));
    return fmt::format("was ended by signal {} ({}){}", WTERMSIG(status), strsignal(WTERMSIG(status)),
                       WTERMSIG(status) == SIGKILL ? ", which the system sends if memory is short" : "");
  }

  const TemporaryFolder folder_;
  const double most_silent_s_;
  Activity activity_{folder_.path().string() + activity_file};
  int socket_ = -1;
  std::string in_;
  pid_t process_ = 0;
  bool busy_ = false;  // with a task
  int64_t last_progress_ = -1;
  double silent_s_ = 0;
  Stopwatch since_call_;
};

}  // namespace

Worker start_worker(const std::vector<std::string>& arguments, double most_silent_s) {
  return [process = std::make_shared<Process>(arguments, most_silent_s)](const Json& task, const auto& take) {
    return process->run(task, take);
  };
}

int take_tasks(const Taker& taker) {
  const char* const folder = std::getenv("TMPDIR");
  int type = 0;
  socklen_t bytes = sizeof type;
  if (!folder || getsockopt(worker_socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0) {
    throw BadInput("--task is not allowed; a run starts its own processes with it");
  }
  end_with_parent();
  fcntl(worker_socket, F_SETFD, FD_CLOEXEC);
  Activity activity(folder + std::string(activity_file));
  const auto answer = [](const Json& message) {
    const std::string text = packed(message);
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t written = send(worker_socket, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (written < 0 && errno != EINTR) _exit(1);
      rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
    }
  };
  const Port port{.send = answer, .activity = activity, .may_exit = true};
  std::string in;
  while (read_more(worker_socket, in)) {
    const std::optional<Json> task = unpacked(in);
    if (!task) continue;
    if (!taker(*task, port)) {
      std::fflush(nullptr);
      _exit(1);  // without destructors, which would wait for the kernels that still run on the device
    }
    answer({{"done", true}});
  }
  return 0;
}

struct Activity::Shared {
  std::atomic<int64_t> progresses;
  std::atomic<int> at;
};

Activity::Activity(const std::string& file) {
  const int descriptor = file.empty() ? -1 : open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const bool has_room = file.empty() || (descriptor >= 0 && ftruncate(descriptor, sizeof(Shared)) == 0);
  const int flags = MAP_SHARED | (file.empty() ? MAP_ANONYMOUS : 0);
  void* const memory =
      has_room ? mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, flags, descriptor, 0) : MAP_FAILED;
  if (descriptor >= 0) close(descriptor);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = static_cast<Shared*>(memory);
}

Activity::~Activity() { munmap(shared_, sizeof(Shared)); }

void Activity::progress() { shared_->progresses.fetch_add(1, std::memory_order_relaxed); }
int64_t Activity::progresses() const { return shared_->progresses.load(std::memory_order_relaxed); }
void Activity::at(int number) {
  progress();
  shared_->at.store(number, std::memory_order_relaxed);
}
int Activity::at() const { return shared_->at.load(std::memory_order_relaxed); }

CompilationLimit::CompilationLimit(const Port& port, double seconds, double bytes)
    : thread_([this, &port, seconds, bytes] {
        constexpr auto step = std::chrono::milliseconds(20);
        const Stopwatch stopwatch;
        const double before = resident_bytes();
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, step, [this] { return done_; })) {
          const bool too_long = stopwatch.seconds() > seconds;
          if (!too_long && resident_bytes() - before <= bytes) continue;
          port.send(
              {{"lost", "failed"},
               {"reason", too_long ? fmt::format("the compiler takes more than {:.0f} s", seconds)
                                   : fmt::format("the compiler takes more than {:.0f} GB of memory", 1e-9 * bytes)}});
          _exit(1);
        }
      }) {}

CompilationLimit::~CompilationLimit() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

namespace {

Duel duel_from_json(const Json& json) {
  return {{}, Case::from_json(json.at("baseline")), Case::from_json(json.at("contender"))};
}

Ceilings ceilings_from_json(const Json& json, const DeviceInfo& info) {
  return {.copy_gbps = json.at("copy_gbps"),
          .f32_tflops = json.at("f32_tflops"),
          .f16_tflops = json.at("f16_tflops"),
          .bf16_tflops = json.at("bf16_tflops"),
          .tf32_tflops = json.at("tf32_tflops"),
          .peak_16_bit_tflops = info.peak_16_bit_tflops};
}

}  // namespace

Json to_json(const Duel& duel) { return {{"baseline", duel.baseline.json()}, {"contender", duel.contender.json()}}; }

std::vector<Case> Task::cases() const {
  std::vector<Case> all;
  for (const std::vector<Case>& cases : groups) all.insert(all.end(), cases.begin(), cases.end());
  for (const Duel& duel : duels) all.insert(all.end(), {duel.baseline, duel.contender});
  return all;
}

bool Task::remove(const Case& config, bool pairs) {
  size_t removed = 0;
  for (std::vector<Case>& cases : groups) removed += std::erase(cases, config);
  std::erase_if(groups, [](const std::vector<Case>& cases) { return cases.empty(); });
  if (pairs) {
    removed +=
        std::erase_if(duels, [&](const Duel& duel) { return duel.baseline == config || duel.contender == config; });
  }
  return removed > 0;
}

Json Task::json() const {
  Json all = Json::array(), pairs = Json::array();
  for (const std::vector<Case>& cases : groups) {
    Json& group = all.emplace_back(Json::array());
    for (const Case& config : cases) group.push_back(config.json());
  }
  for (const Duel& duel : duels) pairs.push_back(to_json(duel));
  return {{"groups", all},
          {"duels", pairs},
          {"part", part},
          {"parts", parts},
          {"budget_s", budget_s},
          {"groups_s", groups_s},
          {"prepare", prepare},
          {"last", last},
          {"asked_for", asked_for},
          {"compile_ahead", compile_ahead},
          {"run", run}};
}

Task Task::from_json(const Json& json) {
  Task task{.part = json.at("part"),
            .parts = json.at("parts"),
            .budget_s = json.at("budget_s"),
            .groups_s = json.at("groups_s"),
            .prepare = json.at("prepare"),
            .last = json.at("last"),
            .asked_for = json.at("asked_for"),
            .compile_ahead = json.at("compile_ahead"),
            .run = json.at("run")};
  for (const Json& group : json.at("groups")) {
    std::vector<Case>& cases = task.groups.emplace_back();
    for (const Json& config : group) cases.push_back(Case::from_json(config));
  }
  for (const Json& duel : json.at("duels")) task.duels.push_back(duel_from_json(duel));
  return task;
}

double Tasks::most_silent_s() const {
  constexpr double with_users_code_s = 120;  // more than CompilationLimit::most_s
  return (has_files(given_.options.files) ? std::min(with_users_code_s, given_.spec.most_silent_s)
                                          : given_.spec.most_silent_s) +
         given_.options.max_launch_s;
}

Tasks::Found Tasks::repeat(Task task) {
  const int part = task.part, parts = task.parts;
  recorder_.progress().begin(fmt::format("process {} of {}", part, parts));
  Worker own;
  Found found;
  try {
    carry_out(std::move(task), own, found);
  } catch (const std::exception& error) {
    failed_ = true;
    recorder_.tell(fmt::format("process {} of {} that repeat measurements: {}", part, parts, error.what()));
  }
  return found;
}

void Tasks::carry_out(Task task, Worker& worker, Found& found) {
  found.part = task.part;
  task.run = recorder_.run();
  recorder_.progress().add(task.cases().size() - task.duels.size());
  do {
    if (interrupted()) throw Interrupted{};
    task.compile_ahead = compile_ahead_;
    if (!worker) worker = start_(given_.options.arguments, most_silent_s());
    const std::vector<Case> cases = task.cases();
    WorkerEnd end;
    try {
      end = worker(task.json(), [&](const Json& message) { take(message, task, found); });
    } catch (...) {
      worker = {};
      throw;
    }
    if (!end.done) worker = {};
    if (interrupted()) throw Interrupted{};
    if (end.done) return;
    lose(end, cases, task);
  } while (!task.empty());
}

void Tasks::take(const Json& message, Task& left, Found& found) {
  if (message.contains("error")) {
    const std::string text = message["error"];
    if (message["status"] == 2) throw BadInput(text);
    if (message["status"] == 3) throw DeviceMissing(text);
    throw std::runtime_error(text);
  }
  if (message.contains("begin")) recorder_.progress().begin(message["begin"]);
  if (message.contains("note")) recorder_.progress().note(message["note"]);
  if (message.contains("ceilings")) {
    const Json &rates = message["ceilings"], &test = message["flush_selftest"];
    if (rates.is_object()) ceilings_ = max(ceilings_, ceilings_from_json(rates, given_.info));
    if (test.is_object()) flush_selftest_ = test;
    if (test.is_object() && test["ok"] == false && !std::exchange(told_no_flush_, true)) {
      recorder_.progress().note(
          "no times with flushed caches: the flush has no effect in its self-test, or there is no memory for it");
    }
  }
  measured_s_ += message.value("seconds", 0.0);
  if (message.contains("measurement")) {
    const Json& record = message["measurement"];
    Measurement measurement = measurement_from_json(record);
    const bool of_group = left.remove(measurement.config, false);
    const bool bad = measurement.status != "ok" && measurement.status != "skipped";
    if (!of_group) left.remove(measurement.config, true);  // a failure in a comparison
    if (!of_group) recorder_.progress().add(1);
    if (left.part == 0 || bad) return recorder_.store(record, message["samples"]);
    if (!message["samples"].is_null()) {
      recorder_.keep_samples(left.part, {{"case", record["case"]}}, message["samples"]);
    }
    recorder_.progress().finish(label(measurement.config, recorder_.label_axes()));
    found.measurements.push_back(std::move(measurement));
  }
  if (message.contains("duel")) {
    const Duel duel = duel_from_json(message["duel"]);
    std::erase_if(left.duels, [&](const Duel& other) { return same_pair(duel, other); });
    recorder_.progress().finish(label(duel.contender, recorder_.label_axes()) + " against " +
                                label(duel.baseline, recorder_.label_axes()));
    if (message["samples"].is_null()) return;
    recorder_.keep_samples(std::max(left.part, 1), message["duel"], message["samples"]);
    found.pairs.emplace_back(duel, samples_from_json(message["samples"]));
  }
}

void Tasks::lose(const WorkerEnd& end, const std::vector<Case>& cases, Task& left) {
  if (left.prepare) {
    std::string texts;
    for (const auto& [option, path] : given_.options.files) {
      if (!path.empty()) texts += fmt::format(" {} {}", option, path);
    }
    throw BadInput(end.reason + ", while it compiled" + texts);
  }
  // A worker that ends while it compiles several kernels at once is followed by one that compiles one at a time.
  if (end.at < 0 && std::exchange(compile_ahead_, false)) return;
  if (end.at < 0) throw std::runtime_error(end.reason + ", in no case");
  const Case& config = cases.at(static_cast<size_t>(end.at));
  const auto& results = recorder_.results();
  const bool lost_device = !results.empty() && results.back().reason.starts_with(device_lost);
  if (!lost_device || results.back().config != config) {
    // The code of a user may overwrite data that the worker uses later. So its case failed, even if it has a record.
    const bool users_code = given_.info.on_host && has_files(given_.options.files);
    if (!left.remove(config, true) && !users_code) {
      failed_ = true;
      return recorder_.tell(end.reason);
    }
    Measurement record = blank(given_.spec, given_.info, recorder_.run(), config);
    fail(record, end.status, device_lost + end.reason);
    recorder_.store(to_json(record, Ceilings{}));
  }
  recorder_.progress().note(results.back().reason + "; the run goes on in a new process");
}

}  // namespace attn
