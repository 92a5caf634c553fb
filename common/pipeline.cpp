#include "common/pipeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "common/device.h"
#include "common/error.h"
#include "common/parallel.h"
#include "common/sha256.h"

namespace attn {

namespace fs = std::filesystem;

namespace {
// The one text of that name.
std::string_view interned(std::string_view name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return *names.insert(std::string(name)).first;
}

// Where `name` is, or would be.
template <typename Entries>
auto place_of(Entries& entries, std::string_view name) {
  return std::lower_bound(entries.begin(), entries.end(), name,
                          [](const auto& entry, std::string_view other) { return entry.first < other; });
}
}  // namespace

FunctionConstants::FunctionConstants(std::initializer_list<Entry> entries) {
  for (const auto& [name, value] : entries) (*this)[name] = value;
}

int64_t& FunctionConstants::operator[](std::string_view name) {
  auto place = place_of(entries_, name);
  if (place == entries_.end() || place->first != name) place = entries_.emplace(place, interned(name), 0);
  return place->second;
}

int64_t FunctionConstants::at(std::string_view name) const {
  const auto place = place_of(entries_, name);
  if (place == entries_.end() || place->first != name) throw std::out_of_range("no constant " + std::string(name));
  return place->second;
}

bool FunctionConstants::contains(std::string_view name) const {
  const auto place = place_of(entries_, name);
  return place != entries_.end() && place->first == name;
}

void FunctionConstants::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == name; });
}

bool FunctionConstants::operator==(const FunctionConstants& other) const {
  return std::ranges::equal(entries_, other.entries_, [](const Entry& a, const Entry& b) {
    return a.first.data() == b.first.data() && a.second == b.second;
  });
}

void FunctionConstants::merge(const FunctionConstants& others) {
  for (const auto& [name, value] : others) {
    if (!contains(name)) (*this)[name] = value;
  }
}

FunctionConstants KernelSource::run_time_values() const {
  FunctionConstants values;
  for (const std::string& name : run_time) {
    if (!constants.contains(name)) throw BadInput(fmt::format("{} is no constant of {}", name, path));
    const int64_t value = constants.at(name);
    if (value != static_cast<int>(value)) {
      throw BadInput(fmt::format("{}={} is no int; only those can be set at run time", name, value));
    }
    values[name] = value;
  }
  return values;
}

std::string KernelSource::key() const {
  std::string text = entry + "[";
  for (const auto& [name, value] : constants) {
    const bool at_run_time = run_time.contains(std::string(name));
    text += at_run_time ? fmt::format("{}=run_time,", name) : fmt::format("{}={},", name, value);
  }
  for (const auto& [name, body] : includes) text += fmt::format("{}:{},", name, sha256(body).substr(0, 8));
  if (text.back() == ',') text.pop_back();
  text += "]";
  for (const KernelSource& fragment : fragments) {
    text += (linking == Linking::before_optimizer ? "+" : "|") + fragment.key();
  }
  return text;
}

std::string KernelSource::prologue() const {
  std::string text;
  for (const auto& [name, value] : constants) {
    if (run_time.contains(std::string(name))) {
      // Immutable as long as a launch lasts, and the compiler knows it in both dialects.
      text += fmt::format(
          "extern \"C\" {{\n#ifdef __CUDACC__\n__constant__ int {0};\n#else\nextern const int {0};\n#endif\n}}\n",
          name);
      continue;
    }
    const bool is_int = value == static_cast<int>(value);
    // The smallest cannot be written: C++ reads it as the negative of a literal that is too large.
    const std::string number = value == INT64_MIN ? fmt::format("{} - 1", INT64_MIN + 1) : fmt::to_string(value);
    text +=
        fmt::format("constexpr {0} {1} = {2};\n#define {1}_VALUE ({2})\n", is_int ? "int" : "long long", name, number);
  }
  return text + fmt::format("#line 1 \"{}\"\n", path);
}

size_t KernelSourceHash::operator()(const KernelSource& source) const {
  size_t hash = source.path.size();
  const auto mix = [&hash](size_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u; };  // 2^64 / golden ratio
  // Only what is quickly told apart, above all the variants of a kernel; comparing does the rest.
  mix(std::hash<std::string>()(source.entry));
  for (const auto& [name, value] : source.constants) mix(static_cast<size_t>(value));
  for (const auto& [name, body] : source.includes) mix(body.size());
  mix(source.run_time.size());
  for (const KernelSource& fragment : source.fragments) mix((*this)(fragment) + static_cast<size_t>(source.linking));
  return hash ^ hash >> 32;
}

std::string source_root() {
  const char* named = std::getenv("ATTENTION_PROTO_SOURCE");
  return named && *named ? fs::absolute(named).lexically_normal().string() : ATTN_SOURCE_ROOT;
}

std::string read_source(const KernelSource& source, const std::string& path) {
  if (const auto replaced = source.includes.find(path); replaced != source.includes.end()) return replaced->second;
  const fs::path file = fs::path(source_root()) / path;
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    throw BadInput(
        fmt::format("kernel source {} cannot be read; ATTENTION_PROTO_SOURCE names the source tree", file.string()));
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

namespace {

// Names in #include "NAME" lines, whether or not the preprocessor would reach them: a file too many in the hash costs
// a recompilation, one too few a wrong result.
std::vector<std::string> included_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    const size_t open = line.find('"', at);
    const size_t close = open == std::string::npos ? open : line.find('"', open + 1);
    if (close != std::string::npos) names.push_back(line.substr(open + 1, close - open - 1));
  }
  return names;
}

void collect(const KernelSource& source, const std::string& path, std::set<std::string>& seen,
             std::vector<SourceFile>& files) {
  if (!seen.insert(path).second) return;
  files.push_back({path, read_source(source, path)});
  for (const std::string& name : included_names(files.back().text)) collect(source, name, seen, files);
}

}  // namespace

std::vector<SourceFile> reached_sources(const KernelSource& source) {
  std::vector<SourceFile> files;
  std::set<std::string> seen;
  collect(source, source.path, seen, files);
  return files;
}

std::string source_sha256(const KernelSource& source) {
  std::string text = source.entry + "\n" + source.prologue();
  for (const SourceFile& file : reached_sources(source)) {
    text += fmt::format("{} {}\n{}", file.path, file.text.size(), file.text);
  }
  for (const KernelSource& fragment : source.fragments) {
    text += fmt::format("\nlinked {} {}", static_cast<int>(source.linking), source_sha256(fragment));
  }
  return sha256(text);
}

namespace {

// Sees any damage to a single word, and all but one in 2^64 of the rest: each step can be undone (FNV-1a, over words of
// 8 bytes and with the high half mixed in). Against damage only; what is who is told by SHA-256, at a twentieth of the
// speed.
std::string checksum(std::string_view bytes) {
  uint64_t sum = 0xcbf29ce484222325 ^ bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t taken = std::min(bytes.size(), sizeof word);
    std::memcpy(&word, bytes.data(), taken);
    sum = (sum ^ word) * 0x100000001b3;
    sum ^= sum >> 32;
    bytes.remove_prefix(taken);
  }
  return fmt::format("{:016x}", sum);
}

constexpr int format = 2;

// A binary on disk: a line with the checksum of all that follows, a line of JSON, the code. The JSON has the cache key,
// so that an entry under another's name is seen to be wrong too.
std::string serialize(const std::string& cache_key, const Binary& binary) {
  const nlohmann::ordered_json head = {{"format", format},
                                       {"cache_key", cache_key},
                                       {"key", binary.key},
                                       {"source_sha256", binary.source_sha256},
                                       {"code_sha256", binary.code_sha256},
                                       {"front_end_s", binary.times.front_end_s},
                                       {"optimizer_s", binary.times.optimizer_s},
                                       {"code_generation_s", binary.times.code_generation_s},
                                       {"registers", binary.registers},
                                       {"spill_bytes", binary.spill_bytes},
                                       {"threadgroup_bytes", binary.threadgroup_bytes}};
  const std::string body = head.dump() + "\n" + binary.code;
  return checksum(body) + "\n" + body;
}

// Nothing if the text is not exactly what serialize() wrote for this key.
std::optional<Binary> deserialize(const std::string& cache_key, std::string_view text) {
  const size_t sum_end = text.find('\n');
  if (sum_end == std::string_view::npos) return std::nullopt;
  const std::string_view body = text.substr(sum_end + 1);
  if (checksum(body) != text.substr(0, sum_end)) return std::nullopt;
  const size_t head_end = body.find('\n');
  const auto head = nlohmann::json::parse(body.substr(0, head_end), nullptr, false);
  if (!head.is_object() || head.value("format", 0) != format || head.at("cache_key") != cache_key) return std::nullopt;
  Binary binary;
  binary.key = head.at("key");
  binary.source_sha256 = head.at("source_sha256");
  binary.code_sha256 = head.at("code_sha256");
  binary.times = {head.at("front_end_s"), head.at("optimizer_s"), head.at("code_generation_s")};
  binary.registers = head.at("registers");
  binary.spill_bytes = head.at("spill_bytes");
  binary.threadgroup_bytes = head.at("threadgroup_bytes");
  binary.code = body.substr(head_end + 1);
  return binary;
}

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

// A file while it is made, beside its place: readers see the old file or the new one, never a part. It is locked, so
// that whoever wants the same file waits; a process that dies leaves it unlocked, for the next to take over.
class PendingFile {
 public:
  explicit PendingFile(fs::path target) : target_(std::move(target)), path_(target_.string() + ".part") {
    // Who held the lock before has renamed or removed the file that was waited for: then there is another to wait for.
    while (!held_) {
      descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (descriptor_ < 0) return;
      while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
      }
      struct stat mine{}, there{};
      held_ = fstat(descriptor_, &mine) == 0 && stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
              mine.st_dev == there.st_dev;
      if (!held_) close(descriptor_);
    }
  }
  ~PendingFile() {
    if (!held_) return;
    if (!renamed_) unlink(path_.c_str());
    close(descriptor_);
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  /// Puts the text into its place. False if the disk is full or the folder cannot be written.
  bool write(std::string_view text) {
    if (!held_ || ftruncate(descriptor_, 0) != 0) return false;
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno != EINTR) return false;
      text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
    }
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error == std::errc::is_a_directory && fs::remove(target_, error)) fs::rename(path_, target_, error);
    renamed_ = !error;
    return renamed_;
  }

 private:
  const fs::path target_, path_;
  int descriptor_ = -1;
  bool held_ = false, renamed_ = false;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr std::string_view archive_magic = "attention-proto archive 1\n";

}  // namespace

PipelineArchive PipelineArchive::load(const std::string& path) {
  const std::optional<std::string> file = read_file(path);
  if (!file) throw BadInput(fmt::format("pipeline archive {} cannot be read", path));
  std::string_view rest = *file;
  if (!rest.starts_with(archive_magic)) throw BadInput(fmt::format("{} is not a pipeline archive", path));
  rest.remove_prefix(archive_magic.size());
  PipelineArchive archive;
  // Each entry: "CACHE_KEY BYTES\n" and that many bytes.
  while (!rest.empty()) {
    const size_t newline = rest.find('\n');
    const size_t space = rest.substr(0, newline).rfind(' ');
    size_t bytes = 0;
    if (newline == std::string_view::npos || space == std::string_view::npos ||
        std::from_chars(rest.data() + space + 1, rest.data() + newline, bytes).ptr != rest.data() + newline ||
        bytes > rest.size() - newline - 1) {
      ++archive.damaged_;  // where one entry ends and the next begins is lost
      break;
    }
    const std::string key(rest.substr(0, space));
    if (auto binary = deserialize(key, rest.substr(newline + 1, bytes))) {
      archive.entries_[key] = std::move(*binary);
    } else {
      ++archive.damaged_;
    }
    rest.remove_prefix(newline + 1 + bytes);
  }
  if (archive.damaged_ > 0) {
    spdlog::warn("pipeline archive {}: {} damaged, {} read; what is missing is compiled again", path, archive.damaged_,
                 archive.size());
  }
  return archive;
}

const Binary* PipelineArchive::find(const std::string& cache_key) const {
  const auto found = entries_.find(cache_key);
  return found == entries_.end() ? nullptr : &found->second;
}

void PipelineArchive::save(const std::string& path) const {
  std::string text(archive_magic);
  for (const auto& [key, binary] : entries_) {
    const std::string entry = serialize(key, binary);
    text += fmt::format("{} {}\n", key, entry.size()) + entry;
  }
  if (!PendingFile(path).write(text)) throw BadInput(fmt::format("pipeline archive {} cannot be written", path));
}

// One pipeline; its mutex makes a second thread that wants it wait for the first to compile it.
struct PipelineCache::Slot {
  std::atomic<bool> ready{false};  // the pipeline is there, and stays as it is
  std::mutex mutex;
  std::string cache_key;
  std::optional<Pipeline> pipeline;
};

PipelineCache::PipelineCache(Device& device, std::string folder) : device_(device), folder_(std::move(folder)) {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    spdlog::warn("kernel cache {} cannot be made ({}); kernels are compiled anew in each run", folder_,
                 error.message());
    folder_.clear();
  }
}

PipelineCache::~PipelineCache() = default;

std::string PipelineCache::default_folder() {
  if (const char* named = std::getenv("ATTENTION_PROTO_CACHE")) return named;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::string(xdg) + "/attention-proto";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/attention-proto" : std::string();
}

const Pipeline& PipelineCache::get(const KernelSource& source) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = slots_[source];
    if (!entry) entry = std::make_unique<Slot>();
    slot = entry.get();
  }
  if (slot->ready.load(std::memory_order_acquire)) return *slot->pipeline;
  const std::lock_guard lock(slot->mutex);
  if (!slot->pipeline) {
    const auto start = std::chrono::steady_clock::now();
    Pipeline pipeline;
    slot->cache_key = sha256(source_sha256(source) + device_.compiler_identity());
    pipeline.binary = find_or_compile(source, slot->cache_key, pipeline.origin);
    pipeline.binary.run_time = source.run_time_values();
    const auto loading = std::chrono::steady_clock::now();
    pipeline.kernel = device_.load(pipeline.binary, source.entry);
    pipeline.load_s = seconds_since(loading);
    pipeline.ready_s = seconds_since(start);
    slot->pipeline = std::move(pipeline);
    slot->ready.store(true, std::memory_order_release);
  }
  return *slot->pipeline;
}

Binary PipelineCache::find_or_compile(const KernelSource& source, const std::string& cache_key, std::string& origin) {
  if (const Binary* archived = archive_ ? archive_->find(cache_key) : nullptr) {
    origin = "archive";
    return *archived;
  }
  if (folder_.empty()) {
    origin = "compiled";
    return device_.compile(source);
  }
  const fs::path path = fs::path(folder_) / cache_key;
  const auto read = [&](bool report) -> std::optional<Binary> {
    const std::optional<std::string> file = read_file(path);
    std::optional<Binary> binary = file ? deserialize(cache_key, *file) : std::nullopt;
    if (binary) origin = "disk";
    if (file && !binary && report) {
      spdlog::warn("kernel cache entry {} is damaged; compiling {} again", path.string(), source.key());
    }
    return binary;
  };
  if (auto binary = read(true)) return std::move(*binary);
  std::optional<PendingFile> pending;
  if (writable_) {
    pending.emplace(path);
    if (auto binary = read(false)) return std::move(*binary);  // another process or cache was quicker
  }
  Binary binary = device_.compile(source);
  origin = "compiled";
  if (pending && !pending->write(serialize(cache_key, binary)) && writable_.exchange(false)) {
    spdlog::warn("kernel cache {} cannot be written; new kernels are compiled anew in each run", folder_);
  }
  return binary;
}

void PipelineCache::prepare(const std::vector<KernelSource>& sources, unsigned workers) {
  parallel_for(
      static_cast<int64_t>(sources.size()), 1, [&](int64_t i, int64_t) { get(sources[static_cast<size_t>(i)]); },
      workers);
}

PipelineArchive PipelineCache::archive() const {
  const std::lock_guard lock(mutex_);
  PipelineArchive archive;
  for (const auto& [key, slot] : slots_) {
    const std::lock_guard slot_lock(slot->mutex);
    if (slot->pipeline) archive.add(slot->cache_key, slot->pipeline->binary);
  }
  return archive;
}

}  // namespace attn
